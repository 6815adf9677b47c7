package nested

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// cert is something that looks like a certificate from outside.
func cert(s string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(s)}))
}

func write(t testing.TB, name, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// sandbox is a configuration, and a root filesystem of a container.
func sandbox(t testing.TB) (c *Config, root, dir string) {
	tmp := t.TempDir()
	c = &Config{Authorities: write(t, tmp+"/ours.pem", cert("ours")), Store: write(t, tmp+"/store.pem", cert("system")+cert("ours")), Variables: []string{"SSL_CERT_FILE", "PIP_CERT"}}
	return c, tmp + "/root", tmp + "/shared"
}

const devMount = `{"destination":"/dev","type":"tmpfs","source":"tmpfs"}`

func spec(root, mounts string) []byte {
	return fmt.Appendf(nil, `{"root":{"path":%q},"process":{"args":["x"],"env":["A=1","PIP_CERT=/mine"]},"mounts":[%s],"unknown":18446744073709551615}`, root, mounts)
}

type result struct {
	Process struct{ Env []string }
	Mounts  []struct {
		Destination, Type, Source string
		Options                   []string
	}
	Unknown json.Number
}

func decode(t *testing.T, b []byte) (r result) {
	t.Helper()
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	return r
}

func TestAContainerGetsWhatItsImageTrustsAndOurs(t *testing.T) {
	c, root, dir := sandbox(t)
	// In this order: what the second image has would be there for the first.
	for _, image := range []struct{ has, want string }{
		{"", cert("system") + cert("ours")},
		{cert("theirs") + "# a comment\n", cert("theirs") + cert("ours")},
	} {
		want := image.want
		if image.has != "" {
			write(t, root+"/etc/ssl/certs/ca-certificates.crt", image.has)
		}
		out, err := c.Filter(spec(root, devMount), ".", dir)
		if err != nil {
			t.Fatal(err)
		}
		r := decode(t, out)
		if r.Unknown != "18446744073709551615" || !slices.Equal(r.Process.Env, []string{"A=1", "PIP_CERT=/mine", "SSL_CERT_FILE=" + target}) {
			t.Errorf("%s", out)
		}
		m := r.Mounts[len(r.Mounts)-1]
		if m.Destination != target || m.Type != "bind" || !slices.Contains(m.Options, "ro") {
			t.Errorf("mounts %+v", r.Mounts)
		}
		if b, err := os.ReadFile(m.Source); err != nil || string(b) != want {
			t.Errorf("it trusts %q, %v, want %q", b, err, want)
		}
		again, err := c.Filter(out, ".", dir)
		if err != nil || !bytes.Equal(again, out) {
			t.Errorf("a second time: %s, %v", again, err)
		}
	}
}

func TestAnImageReachesNothingOfTheSandbox(t *testing.T) {
	c, root, _ := sandbox(t)
	outside := write(t, filepath.Dir(root)+"/shadow", cert("secret of the sandbox"))
	for _, to := range []string{outside, "../../../../shadow", "../../../../../../../../../../../../../.." + outside} {
		link := root + "/etc/ssl/certs/ca-certificates.crt"
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(link)
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
		b, err := c.compose(root)
		if err != nil || strings.Contains(string(b), strings.Split(cert("secret of the sandbox"), "\n")[1]) || string(b) != cert("system")+cert("ours") {
			t.Errorf("by %s: %s, %v", to, b, err)
		}
	}
	// Nor is anything but certificates taken, nor more than there is room for.
	store := root + "/etc/ssl/certs/ca-certificates.crt"
	os.Remove(store)
	write(t, store, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"+cert("theirs"))
	if b, err := c.compose(root); err != nil || strings.Contains(string(b), "PRIVATE") {
		t.Errorf("%s, %v", b, err)
	}
	write(t, store, strings.Repeat(cert("x"), maxStore/20))
	if b, err := c.compose(root); err != nil || len(b) > maxStore {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func TestWhatCannotBeAddedIsLeftOut(t *testing.T) {
	c, root, dir := sandbox(t)
	for what, s := range map[string]string{
		"a /dev of the sandbox": string(spec(root, `{"destination":"/dev","type":"bind","source":"/dev"}`)),
		"no /dev":               string(spec(root, "")),
		"no process":            `{"root":{"path":"/x"},"mounts":[` + devMount + `]}`,
	} {
		if out, err := c.Filter([]byte(s), ".", dir); err != nil || string(out) != s {
			t.Errorf("%s: %s, %v", what, out, err)
		}
	}
	for _, s := range []string{"", "[]", `{"mounts":{}}`, `{"mounts":[1]}`, `{"process":[],"mounts":[` + devMount + `]}`} {
		if out, err := c.Filter([]byte(s), ".", dir); err == nil {
			t.Errorf("%q became %s", s, out)
		}
	}
	// A user's engine may not write where root's does.
	out, err := c.Filter(spec(root, devMount), ".", write(t, dir+"/file", "")+"/below")
	if err != nil || !strings.Contains(string(out), `"source":"`+c.Store+`"`) {
		t.Errorf("without a place: %s, %v", out, err)
	}
}

func TestARuntimeIsFoundBehindThisProgram(t *testing.T) {
	tmp := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	one, two := tmp+"/one/runc", write(t, tmp+"/two/runc", "#!/bin/sh\n")
	if err := os.MkdirAll(filepath.Dir(one), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, one); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(two, 0o755); err != nil {
		t.Fatal(err)
	}
	search := filepath.Dir(one) + ":relative:" + filepath.Dir(two)
	for _, arg0 := range []string{"runc", one, "/x/" + Name} {
		if got, err := find(arg0, search); err != nil || got != two {
			t.Errorf("%s: %s, %v", arg0, got, err)
		}
	}
	if !Is("/usr/local/sbin/runc") || !Is(Name) || Is("kit-guest") || Is("/proc/self/fd/5") {
		t.Error("names")
	}
	for _, args := range [][]string{{"--bundle", "/b", "id"}, {"-b", "/b", "id"}, {"--pid-file", "x", "--bundle=/b", "id"}} {
		if got := option(args, "bundle", "b"); got != "/b" {
			t.Errorf("%v: %q", args, got)
		}
	}
	if got := option([]string{"id"}, "bundle", "b"); got != "" {
		t.Errorf("none: %q", got)
	}
}

func TestTheFilesOfABundleAreChangedInPlace(t *testing.T) {
	c, root, _ := sandbox(t)
	bundle := filepath.Dir(write(t, t.TempDir()+"/config.json", string(spec(root, devMount))))
	if err := os.Chmod(bundle+"/config.json", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := rewrite(bundle+"/config.json", func(b []byte) ([]byte, error) { return c.Filter(b, bundle, bundle+"/shared") }); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(bundle + "/config.json")
	b, rerr := os.ReadFile(bundle + "/config.json")
	if err != nil || rerr != nil || st.Mode().Perm() != 0o600 || !strings.Contains(string(b), target) {
		t.Errorf("%v %v %v\n%s", st.Mode(), err, rerr, b)
	}
	if err := c.prepare("/none", []string{"runc", "--root", "/x", "create", "--bundle", bundle + "/none", "id"}); err != nil {
		t.Errorf("without a bundle: %v", err)
	}
	if out, err := c.Environ([]byte(`{"args":["x"]}`)); err != nil || !strings.Contains(string(out), "SSL_CERT_FILE="+target) {
		t.Errorf("%s, %v", out, err)
	}
}

func FuzzFilter(f *testing.F) {
	f.Add(spec("/c", devMount))
	f.Add([]byte(`{"process":{},"mounts":null}`))
	c, _, dir := sandbox(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		out, err := c.Filter(b, ".", dir)
		if err != nil || bytes.Equal(out, b) {
			return
		}
		if again, err := c.Filter(out, ".", dir); err != nil || !bytes.Equal(again, out) {
			t.Errorf("%q became %q, and then %q, %v", b, out, again, err)
		}
	})
}
