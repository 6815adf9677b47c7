package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// keeps is a fake that keeps secrets, and their values where tests see them.
type keeps struct {
	fake
	secrets []sandbox.Secret
	failed  error
	input   sandbox.SecretInput
	got     string
}

func (k *keeps) Secrets(context.Context) ([]sandbox.Secret, error) { return k.secrets, k.failed }

func (k *keeps) SetSecret(_ context.Context, r sandbox.SecretRef, in sandbox.SecretInput) error {
	k.note("set %+v", r)
	k.input = in
	if in.Value != nil {
		b, err := io.ReadAll(in.Value)
		k.got = string(b)
		return err
	}
	return nil
}

func (k *keeps) RemoveSecret(_ context.Context, r sandbox.SecretRef) error {
	k.note("rm %+v", r)
	if r.Service == "gone" {
		return fmt.Errorf("secret gone: %w", kiterr.ErrNotFound)
	}
	return nil
}

func (k *keeps) ImportSecrets(_ context.Context, r sandbox.SecretRef, _ io.Reader, names map[string]string) error {
	k.note("import %+v", r)
	for _, n := range slices.Sorted(maps.Keys(names)) {
		k.note("%s to %s", n, names[n])
	}
	return nil
}

func (k *keeps) command(stdin string, args ...string) (status int, out, errs string) {
	var o, e strings.Builder
	env := &Env{Args: append([]string{"secret"}, args...), Stdin: strings.NewReader(stdin), Stdout: &o, Stderr: &e, Runtime: k,
		LookupEnv: func(name string) (string, bool) {
			v, ok := map[string]string{"TOKEN": "from-env", "HOME": "/h"}[name]
			return v, ok
		}}
	return Main(context.Background(), env), o.String(), e.String()
}

func TestASecretComesFromWhereItWasSaid(t *testing.T) {
	for _, c := range []struct{ args, did, got, source string }{
		{"set svc", "set {Service:svc Sandbox: Kit: Registry:}", "typed\n", "stdin"},
		{"set svc --sandbox t", "set {Service:svc Sandbox:t Kit: Registry:}", "typed\n", "stdin"},
		{"set svc --kit ./k", "set {Service:svc Sandbox: Kit:./k Registry:}", "typed\n", "stdin"},
		{"set svc --env TOKEN", "set {Service:svc Sandbox: Kit: Registry:}", "from-env", "env TOKEN"},
		{"set svc --file /dev/null", "set {Service:svc Sandbox: Kit: Registry:}", "", "file"},
		{"set svc --oauth", "set {Service:svc Sandbox: Kit: Registry:}", "typed\n", "stdin"},
		{"set svc --command x --approve", "set {Service:svc Sandbox: Kit: Registry:}", "", ""},
		{"rm a --sandbox t b", "rm {Service:a Sandbox:t Kit: Registry:},rm {Service:b Sandbox:t Kit: Registry:}", "", ""},
		{"set --registry ghcr.example", "set {Service:the registry Sandbox: Kit: Registry:ghcr.example}", "typed\n", "stdin"},
		{"rm --registry ghcr.example", "rm {Service: Sandbox: Kit: Registry:ghcr.example}", "", ""},
		{"import - A=a B=b", "import {Service: Sandbox: Kit: Registry:},A to a,B to b", "", ""},
	} {
		var k keeps
		if status, out, errs := k.command("typed\n", strings.Fields(c.args)...); status != 0 || out != "" || errs != "" {
			t.Errorf("%s: status %d, %q, %q", c.args, status, out, errs)
		}
		if strings.Join(k.did, ",") != c.did || k.got != c.got || k.input.Source != c.source {
			t.Errorf("%s: did %v, got %q from %q", c.args, k.did, k.got, k.input.Source)
		}
		if oauth := strings.Contains(c.args, "--oauth"); k.input.OAuth != oauth {
			t.Errorf("%s: oauth %v", c.args, k.input.OAuth)
		}
		if strings.Contains(c.args, "--command") && (k.input.Command != "x" || k.input.Getenv("HOME") != "/h" || k.input.Value != nil) {
			t.Errorf("%s: %+v", c.args, k.input)
		}
	}
}

func TestSecretMistakesKeepNothing(t *testing.T) {
	for args, want := range map[string]struct {
		status int
		says   string
	}{
		"set svc value":                         {1, "no secret"},
		"set":                                   {1, "SERVICE"},
		"set svc --command x":                   {kiterr.StatusWidening, "--approve"},
		"set svc --command x --no-input":        {kiterr.StatusWidening, "--approve"},
		"set svc --command x --approve --oauth": {1, "exclude"},
		"set svc --env NOTHING":                 {1, "NOTHING"},
		"set svc --sandbox a --kit b":           {1, `--sandbox and --kit exclude each other; see "kitbox secret set --help"`},
		"set svc --file a --env b":              {1, `--file and --env exclude each other; see "kitbox secret set --help"`},
		"set svc --env= --file a --command=b":   {1, "--file and --env and --command exclude each other"},
		"rm svc --sandbox a --kit b":            {1, `exclude each other; see "kitbox secret rm --help"`},
		"import - A=a --sandbox a --kit b":      {1, `exclude each other; see "kitbox secret import --help"`},
		"import -":                              {1, "NAME=SERVICE"},
		"import - A":                            {1, "NAME=SERVICE"},
		"import /nonexistent/file A=a":          {1, "/nonexistent/file"},
		"rm":                                    {1, "SERVICE"},
	} {
		var k keeps
		status, out, errs := k.command("typed\n", strings.Fields(args)...)
		if status != want.status || out != "" || !strings.Contains(errs, want.says) || strings.Count(errs, "\n") != 1 || len(k.did) > 0 {
			t.Errorf("%s: status %d, %q, %q, did %v", args, status, out, errs, k.did)
		}
	}
	var k keeps
	if status, _, errs := k.command("", "rm", "a", "gone", "b"); status != 1 || !strings.Contains(errs, "gone") || len(k.did) != 3 {
		t.Errorf("status %d, %q, did %v", status, errs, k.did)
	}
}

func TestTheListOfSecrets(t *testing.T) {
	k := keeps{secrets: []sandbox.Secret{
		{Service: "a", Scope: "sandbox", For: "t", Form: "value", Source: "stdin", Set: time.Now().Add(-3 * time.Hour)},
		{Service: "b", Scope: "global", Form: "command", Source: "command gh", Set: time.Now().Add(-90 * time.Second)}}}
	_, out, _ := k.command("", "ls")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 3 || strings.Join(strings.Fields(lines[1]), " ") != "a sandbox t value stdin 3h ago" || strings.Join(strings.Fields(lines[2]), " ") != "b all sandboxes command command gh 1m ago" {
		t.Errorf("ls printed\n%s", out)
	}
	k.failed = errors.New("secrets/x.json: unexpected end of JSON input")
	status, out, errs := k.command("", "ls", "--json")
	if status != 1 || !strings.Contains(out, `"service": "b"`) || !strings.Contains(errs, "x.json") {
		t.Errorf("status %d, %s, %s", status, out, errs)
	}
	if _, err := sandbox.SecretsOf(new(fake)); !errors.Is(err, kiterr.ErrUnsupported) {
		t.Errorf("err = %v", err)
	}
}
