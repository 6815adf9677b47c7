// Package agentcontext is the grammar of the agent-context capability: written
// guidance for the agent, and the file in which it looks for it. It grants
// nothing; writing the file is in internal/handler/agentcontext.
package agentcontext

import (
	_ "embed"
	"path"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/guestpath"
)

// Type is the wire name.
const Type = capability.Namespace + "/agent-context@1"

// A Config is a profile, a body, or both. A profile is the file that the agent
// reads; a body is what a Kit contributes to it. Its zero value is invalid.
type Config struct {
	Filename  string `json:"filename,omitzero"`  // one path element; without Directory, beside the workspace and for workloads only
	Directory string `json:"directory,omitzero"` // absolute and canonical; needs Filename

	// At most one of these is the body.
	ContentFile string `json:"contentFile,omitzero"` // relative to the descriptor when authored, absolute in the image once published
	Content     string `json:"content,omitzero"`
}

// Explicit reports whether c names a profile by directory and file name, which
// wins over a legacy one.
func (c Config) Explicit() bool { return c.Directory != "" && c.Filename != "" }

// Legacy reports whether c names a profile by file name alone. Only a workload
// may.
func (c Config) Legacy() bool { return c.Directory == "" && c.Filename != "" }

// HasBody reports whether c contributes text.
func (c Config) HasBody() bool { return c.Content != "" || c.ContentFile != "" }

// Profile returns the file that an explicit c names.
func (c Config) Profile() string { return path.Join(c.Directory, c.Filename) }

// Decode returns the config of r if it is valid. The error is a
// [capability.InvalidError].
func Decode(r capability.Request) (Config, error) {
	return capability.DecodeValid(Type, r, (*Config).judge)
}

// Peek decodes r without judging values and with references in it, for rules
// that concern other entries or the kind of Kit. It is false if r does not have
// the shape.
func Peek(r capability.Request) (Config, bool) { return capability.Peek[Config](r) }

// Encode returns the request for c, or the error [Decode] would give for it.
func (c Config) Encode() (capability.Request, error) {
	return capability.EncodeValid(Type, c, (*Config).judge)
}

//go:embed schema.json
var schema []byte

var definition = capability.Definition{
	Types:   []string{Type},
	Arity:   capability.Instance,
	Inspect: capability.Inspecting((*Config).judge),
	Merge:   mergeAll,
	Schema:  func(string) []byte { return schema },
}

// Definition returns the grammar of the type.
func Definition() capability.Definition { return definition }

func (c *Config) judge(f capability.Form, _ capability.Open, in *capability.Inspection) {
	before := len(in.Problems)
	if c.Filename == "" && c.Directory == "" && !c.HasBody() {
		in.Problem("config", "names no profile and has no body: remove the entry")
		return
	}
	switch {
	case c.Filename == "" && c.Directory != "":
		in.Problem("config.filename", "a directory needs the name of the file in it")
	case c.Filename == "" || f.Waits(c.Filename):
	case c.Filename == "." || c.Filename == ".." || strings.ContainsAny(c.Filename, "/\x00"):
		in.Problem("config.filename", "must be the name of a file, without a directory")
	}
	if c.Directory != "" && !f.Waits(c.Directory) {
		if fault := guestpath.Canonical(c.Directory); fault != "" {
			in.Problem("config.directory", fault)
		}
	}
	if c.ContentFile != "" && f == capability.Authored && !f.Waits(c.ContentFile) {
		if p := path.Clean(c.ContentFile); p == ".." || strings.HasPrefix(p, "../") {
			in.Problem("config.contentFile", "must stay inside the directory of the descriptor")
		}
	}
	if c.Content != "" && c.ContentFile != "" {
		in.Problem("config", "states content and contentFile: a body has one form")
	}

	profile := true
	for _, p := range in.Problems[before:] {
		profile = profile && p.Path != "config.directory" && p.Path != "config.filename"
	}
	switch {
	case c.Directory == "":
		in.Claim(capability.Claim{Space: "agent-context without a directory", At: "type", What: "agent-context entry without a directory"})
	case profile:
		in.Claim(capability.Claim{Space: "agent-context profile", Key: c.Profile(), At: "config.directory", What: "agent-context profile"})
	}
	if c.HasBody() {
		in.Claim(capability.Claim{Space: "agent-context body", At: "config", What: "agent-context body"})
	}
}
