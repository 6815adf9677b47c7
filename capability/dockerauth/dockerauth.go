// Package dockerauth is the grammar of the docker-auth capability: the use of
// the host's login for one image registry. The login stays at the boundary, in
// internal/boundary/credential.
package dockerauth

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// Type is the wire name.
const Type = capability.Namespace + "/docker-auth@1"

// A Config names one registry. Its zero value is invalid.
type Config struct {
	Registry string `json:"registry"` // host or host:port; see [Config.Host]
}

// Host returns the registry in the one spelling by which it is known: lower
// case, and docker.io for every name of Docker Hub.
func (c Config) Host() string {
	switch h := strings.ToLower(c.Registry); h {
	case "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com":
		return "docker.io"
	default:
		return h
	}
}

// Decode returns the config of r if it is valid. The error is a
// [capability.InvalidError].
func Decode(r capability.Request) (Config, error) {
	return capability.DecodeValid(Type, r, (*Config).judge)
}

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
	host, fault := c.Host(), ""
	if !f.Waits(c.Registry) {
		fault = hostFault(c.Registry)
	}
	if fault != "" {
		in.Problem("config.registry", fault)
	} else {
		in.Claim(capability.Claim{Space: "registry", Key: host, At: "config.registry", What: "registry"})
	}
	in.Line(capability.ListDockerAuth, host)
}

// hostFault says why s is not a registry host, or returns "".
func hostFault(s string) string {
	switch {
	case s == "":
		return "a registry host is required"
	case strings.Contains(s, "://"):
		return fmt.Sprintf("%q is a URL: write the registry host alone, or host:port", s)
	case strings.ContainsAny(s, "/@"):
		return fmt.Sprintf("%q is more than a registry host: write no repository, digest or user", s)
	}
	host, port, hasPort := strings.Cut(s, ":")
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 2 || strings.Trim(s[1:end], "0123456789abcdefABCDEF:.") != "" {
			return fmt.Sprintf("%q is not a registry host", s)
		}
		host, port, hasPort = "ip", strings.TrimPrefix(s[end+1:], ":"), len(s) > end+1
		if hasPort && s[end+1] != ':' {
			return fmt.Sprintf("%q is not a registry host", s)
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); hasPort && (err != nil || n == 0) {
		return fmt.Sprintf("%q has no valid port", s)
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(strings.ToLower(label), "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return fmt.Sprintf("%q is not a registry host", s)
		}
	}
	return ""
}

// mergeAll grants a login once, whoever asks.
func mergeAll(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	return merge.Instances(mode, cs, func(c capability.Contribution) (string, bool) {
		config, err := Decode(c.Request)
		return config.Host(), err == nil
	}, merge.Restated)
}
