package cli

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// store is a fake with things to complete the names of.
type store struct{ keeps }

func (*store) Volumes(_ context.Context, name string) ([]sandbox.Volume, error) {
	all := []sandbox.Volume{{Sandbox: "gone", Path: "/data"}, {Sandbox: "gone", Path: "/log"}, {Sandbox: "t", Path: "/other"}}
	return slices.DeleteFunc(all, func(v sandbox.Volume) bool { return name != "" && v.Sandbox != name }), nil
}

func (*store) RemoveVolume(context.Context, string, string) error { return nil }

func (*store) HostMounts(context.Context, string) ([]sandbox.HostMount, error) {
	return []sandbox.HostMount{{Handle: "0011", Path: "/a", Identity: "repository k"}, {Handle: "0022", Path: "/b\tc", Identity: "repository l"}}, nil
}

func (*store) ReadHostMount(context.Context, string, string) (io.ReadCloser, error) {
	return nil, kiterr.ErrNotFound
}
func (*store) RemoveHostMount(context.Context, string) error { return nil }

func (s *store) Images(context.Context) ([]sandbox.Image, error) {
	return []sandbox.Image{{Ref: "a:1"}, {Digest: "sha256:1"}, {Ref: "b:1"}}, nil
}

func (*store) CreateBase(context.Context, sandbox.BaseOptions) (sandbox.Image, error) {
	return sandbox.Image{}, nil
}

func (s *store) Open(context.Context, string) (sandbox.Sandbox, error) {
	return withJobs{fakeBox{&s.fake, "t"}}, nil
}

type withJobs struct{ fakeBox }

func (withJobs) Detach(context.Context, *sandbox.Cmd) (string, error)     { return "", nil }
func (withJobs) JobOutput(context.Context, string, bool, io.Writer) error { return nil }
func (withJobs) StopJob(context.Context, string) error                    { return nil }
func (withJobs) Jobs(context.Context) ([]sandbox.Job, error) {
	return []sandbox.Job{{ID: "ended"}, {ID: "one", Running: true}, {ID: "two", Running: true}}, nil
}

// completed is what is offered for the last of args, with what is said of each.
func completed(t *testing.T, args ...string) []string {
	t.Helper()
	s := &store{}
	s.infos = []sandbox.Info{{Name: "t"}, {Name: "u"}}
	s.secrets = []sandbox.Secret{{Service: "github", Scope: "global"}, {Service: "openai", Scope: "sandbox", For: "t"}, {Service: "other", Scope: "sandbox", For: "u"},
		{Service: "kits", Scope: "kit", For: "k"}, {Scope: "registry", For: "r.example"}}
	var out, errs bytes.Buffer
	if status := Main(t.Context(), &Env{Args: append([]string{"__complete"}, args...), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Runtime: s, Images: s}); status != 0 {
		t.Fatalf("%q: status %d, %s", args, status, &errs)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	return lines[:len(lines)-1] // the last is the directive
}

func TestCompletionOffersWhatTheCommandTakes(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"volume rm ", "gone t"},
		{"volume rm gone ", "/data /log"},
		{"volume rm gone /data ", ""},
		{"volume inspect ", "gone t"},
		{"stop ", "t u"},
		{"stop t ", "u"},
		{"stop t u ", ""},
		{"start u ", "t"},
		{"restart t ", "u"},
		{"rm t ", "u"},
		{"status t ", ""},
		{"exec t ", ""},
		{"mount read ", "0011\t/a of repository k 0022\t/b c of repository l"},
		{"mount rm ", "0011\t/a of repository k 0022\t/b c of repository l"},
		{"mount rm 0011 ", ""},
		{"job stop ", "t u"},
		{"job stop t ", "one two"},
		{"job stop t one ", "two"},
		{"logs t ", "ended one two"},
		{"image rm ", "a:1 b:1"},
		{"image rm a:1 ", "b:1"},
		{"secret rm ", "github"},
		{"secret rm --sandbox t ", "openai"},
		{"secret rm --kit k ", "kits"},
		{"secret rm --registry r.example ", ""},
		{"run --pull ", "always missing never"},
		{"build --pull ", "always missing never"},
		{"create --driver ", "namespace oci"},
		{"plan --workspace-mode ", "host cloned internal none"},
	} {
		if got := strings.Join(completed(t, strings.Split(c.args, " ")...), " "); got != c.want {
			t.Errorf("%q: offered %q, want %q", c.args, got, c.want)
		}
	}
}

func TestCompletionDescribesOptionsWithoutMarks(t *testing.T) {
	options := 0
	for _, command := range []string{"run", "create", "build", "secret set", "policy allow"} {
		for _, line := range completed(t, append(strings.Fields(command), "--")...) {
			options++
			if strings.Contains(line, "`") {
				t.Errorf("%s: %s", command, line)
			}
			if strings.HasPrefix(line, "--clone\t") && !strings.HasSuffix(line, "and nothing else") {
				t.Errorf("the end is cut off: %s", line)
			}
		}
	}
	if options < 40 {
		t.Errorf("only %d options were offered", options)
	}
	var out, errs bytes.Buffer
	if Main(t.Context(), &Env{Args: []string{"run", "--help"}, Stdout: &out, Stderr: &errs}); !strings.Contains(out.String(), "--name NAME") {
		t.Errorf("help lost what options take:\n%s", &out)
	}
}
