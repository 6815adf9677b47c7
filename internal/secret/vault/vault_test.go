package vault_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/secret"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
	"github.com/kitbox-dev/kitbox/kiterr"
)

func TestMain(m *testing.M) {
	// The child of TestSeveralProcesses.
	if dir := os.Getenv("VAULT_TEST_DIR"); dir != "" {
		v := vault.Open(dir)
		for i := range 20 {
			if err := v.Put(context.Background(), entry(fmt.Sprintf("svc-%s-%d", os.Getenv("VAULT_TEST_ID"), i), all), value("v")); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var all = vault.Scope{Kind: vault.Global}

func entry(service string, s vault.Scope) vault.Entry {
	return vault.Entry{Service: service, Scope: s, Source: "stdin"}
}

func value(s string) vault.Secret { return vault.Secret{Value: secret.New([]byte(s))} }

func TestTheMostSpecificSecretWins(t *testing.T) {
	v := vault.Open(filepath.Join(t.TempDir(), "secrets"))
	find := func(kit, sandbox string) string {
		_, s, err := v.Find("github", kit, sandbox)
		if err != nil {
			if !errors.Is(err, kiterr.ErrNotFound) {
				t.Fatal(err)
			}
			return ""
		}
		return string(s.Value.Expose())
	}
	put := func(s vault.Scope, text string) {
		t.Helper()
		if err := v.Put(t.Context(), entry("github", s), value(text)); err != nil {
			t.Fatal(err)
		}
	}
	if got := find("repository k", "t"); got != "" {
		t.Errorf("an empty vault has %q", got)
	}
	put(all, "of all")
	put(vault.Scope{Kind: vault.Kit, Name: "repository k"}, "of the kit")
	put(vault.Scope{Kind: vault.Sandbox, Name: "t"}, "of the sandbox")
	for _, c := range []struct{ kit, sandbox, want string }{
		{"repository k", "t", "of the sandbox"}, {"other", "t", "of the sandbox"}, {"repository k", "u", "of the kit"},
		{"repository other", "u", "of all"}, {"", "", "of all"},
	} {
		if got := find(c.kit, c.sandbox); got != c.want {
			t.Errorf("kit %q, sandbox %q: %q, want %q", c.kit, c.sandbox, got, c.want)
		}
	}
	es, err := v.List()
	if err != nil || len(es) != 3 || es[0].Scope.Kind != vault.Sandbox || es[2].Scope != all || es[0].Form != vault.FormValue || es[0].Set.IsZero() {
		t.Errorf("List = %+v, %v", es, err)
	}
	if err := v.RemoveScope(t.Context(), vault.Scope{Kind: vault.Sandbox, Name: "t"}); err != nil {
		t.Fatal(err)
	}
	if got := find("repository k", "t"); got != "of the kit" {
		t.Errorf("after the sandbox's went: %q", got)
	}
	if err := v.Remove(t.Context(), "github", all); err != nil {
		t.Fatal(err)
	}
	if err := v.Remove(t.Context(), "github", all); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("removing it again: %v", err)
	}
	if got := find("", ""); got != "" {
		t.Errorf("after the removal: %q", got)
	}
}

// TestNothingOnDiskIsPlain looks for what was stored in every file.
func TestNothingOnDiskIsPlain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	v := vault.Open(dir)
	const mark = "tok-31337-mark"
	tokens := &vault.Tokens{Access: secret.New([]byte(mark + "a")), Refresh: secret.New([]byte(mark + "r")), Key: secret.New([]byte(mark + "k")), Params: map[string]string{"client_id": "c"}, Scopes: []string{"x"}, Expires: time.Now().Add(time.Hour)}
	for service, s := range map[string]vault.Secret{"plain": value(mark), "cmd": {Helper: &vault.Helper{Command: "echo " + mark, Env: []string{"A=" + mark}}}, "tok": {Tokens: tokens}} {
		if err := v.Put(t.Context(), entry(service, all), s); err != nil {
			t.Fatal(err)
		}
	}
	files := 0
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		if d.IsDir() {
			return nil
		}
		files++
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		// In base64, three shifts of the text are possible; its parts in JSON.
		for _, form := range []string{mark, "31337", "dG9rLTMx", "b2stMzEz", "ay0zMTMz"} {
			if bytes.Contains(b, []byte(form)) {
				t.Errorf("%s holds %q", path, form)
			}
		}
		return nil
	})
	if err != nil || files < 4 {
		t.Fatalf("%d files, %v", files, err)
	}
	_, s, err := v.Get("tok", all)
	if err != nil || string(s.Tokens.Refresh.Expose()) != mark+"r" || string(s.Tokens.Key.Expose()) != mark+"k" || s.Tokens.Params["client_id"] != "c" || !s.Tokens.Expires.Equal(tokens.Expires) {
		t.Errorf("read back %v, %v", s.Tokens, err)
	}
	// Another process sees the same.
	if _, s, err := vault.Open(dir).Get("cmd", all); err != nil || s.Helper.Command != "echo "+mark {
		t.Errorf("%v, %v", s, err)
	}
}

func TestAChangedFileIsNoticed(t *testing.T) {
	dir := t.TempDir()
	v := vault.Open(dir)
	for _, s := range []string{"a", "b"} {
		if err := v.Put(t.Context(), entry(s, all), value("value of "+s)); err != nil {
			t.Fatal(err)
		}
	}
	a, b := filepath.Join(dir, "a.global.json"), filepath.Join(dir, "b.global.json")
	data, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	restore := func() { os.WriteFile(a, data, 0o600) }
	edit := func(f func(map[string]any)) {
		var doc map[string]any
		if err := json.Unmarshal(data, &doc); err != nil {
			t.Fatal(err)
		}
		f(doc)
		out, _ := json.Marshal(doc)
		os.WriteFile(a, out, 0o600)
	}
	for name, change := range map[string]func(){
		"another secret in its place": func() { other, _ := os.ReadFile(b); os.WriteFile(a, other, 0o600) },
		"another name over it": func() {
			other, _ := os.ReadFile(b)
			os.WriteFile(a, bytes.Replace(other, []byte(`"b"`), []byte(`"a"`), 1), 0o600)
		},
		"another source": func() { edit(func(d map[string]any) { d["secret"].(map[string]any)["source"] = "file" }) },
		"another form":   func() { edit(func(d map[string]any) { d["secret"].(map[string]any)["form"] = "oauth" }) },
		"a version":      func() { edit(func(d map[string]any) { d["version"] = 2 }) },
		"no seal":        func() { edit(func(d map[string]any) { delete(d, "sealed") }) },
		"half of it":     func() { os.WriteFile(a, data[:len(data)/2], 0o600) },
		"nothing":        func() { os.WriteFile(a, nil, 0o600) },
		"very much":      func() { os.WriteFile(a, bytes.Repeat([]byte(" "), 2<<20), 0o600) },
	} {
		change()
		if _, s, err := v.Get("a", all); err == nil {
			t.Errorf("%s: read %v", name, s)
		} else if errors.Is(err, kiterr.ErrNotFound) || strings.Contains(err.Error(), "value of") {
			t.Errorf("%s: %v", name, err)
		}
		restore()
		if _, _, err := v.Get("a", all); err != nil {
			t.Fatalf("%s: put back, %v", name, err)
		}
	}
	// A secret that cannot be read must not be passed over for a wider one.
	os.Remove(filepath.Join(dir, "key"))
	if _, _, err := vault.Open(dir).Find("a", "", ""); err == nil || errors.Is(err, kiterr.ErrNotFound) || !strings.Contains(err.Error(), "set the secrets again") {
		t.Errorf("without the key: %v", err)
	}
}

func TestTheKeyIsTheOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	if err := vault.Open(dir).Put(t.Context(), entry("a", all), value("x")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "key"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := vault.Open(dir).Get("a", all); !errors.Is(err, kiterr.ErrRefused) {
		t.Errorf("a key that others can read: %v", err)
	}
}

func TestWhatIsNotPut(t *testing.T) {
	v := vault.Open(filepath.Join(t.TempDir(), "none"))
	for _, e := range []vault.Entry{
		entry("", all), entry("Git", all), entry("a--b", all), entry("a/../b", all), entry(strings.Repeat("a", 200), all),
		entry("a", vault.Scope{}), entry("a", vault.Scope{Kind: "sandbox"}), entry("a", vault.Scope{Kind: vault.Global, Name: "x"}),
		entry("a", vault.Scope{Kind: vault.Kit, Name: "x\x00y"}),
	} {
		if err := v.Put(t.Context(), e, value("x")); err == nil {
			t.Errorf("%+v was put", e)
		}
	}
	if err := v.Remove(t.Context(), "a", all); !errors.Is(err, kiterr.ErrNotFound) {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(t.TempDir()), "none")); err == nil {
		t.Error("a vault was made for nothing")
	}
}

// TestARemovedScopeIsNotHeldUpByOthers has a file that was cut short.
func TestARemovedScopeIsNotHeldUpByOthers(t *testing.T) {
	dir := t.TempDir()
	v := vault.Open(dir)
	mine := vault.Scope{Kind: vault.Sandbox, Name: "t"}
	for _, e := range []vault.Entry{entry("a", mine), entry("b", mine), entry("a", vault.Scope{Kind: vault.Sandbox, Name: "t2"}), entry("a", all)} {
		if err := v.Put(t.Context(), e, value("x")); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if strings.Contains(f, "a.") {
			if err := os.Truncate(f, 10); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := v.RemoveScope(t.Context(), mine); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.json")); len(left) != 2 {
		t.Errorf("left %v", left)
	}
	if err := vault.Open(filepath.Join(dir, "none")).RemoveScope(t.Context(), mine); err != nil {
		t.Error(err)
	}
}

// TestUpdateDoesNotBringBack is a refresh that ends after the secret was taken
// away.
func TestUpdateDoesNotBringBack(t *testing.T) {
	v := vault.Open(t.TempDir())
	if err := v.Put(t.Context(), entry("a", all), value("old")); err != nil {
		t.Fatal(err)
	}
	change := func(s *vault.Secret) error { *s = value("new"); return nil }
	if err := v.Update(t.Context(), "a", all, change); err != nil {
		t.Fatal(err)
	}
	e, s, err := v.Get("a", all)
	if err != nil || string(s.Value.Expose()) != "new" || e.Changed.IsZero() || e.Source != "stdin" {
		t.Errorf("%+v %v", e, err)
	}
	if err := v.Remove(t.Context(), "a", all); err != nil {
		t.Fatal(err)
	}
	if err := v.Update(t.Context(), "a", all, change); !errors.Is(err, kiterr.ErrNotFound) {
		t.Errorf("updating what is gone: %v", err)
	}
	if es, _ := v.List(); len(es) != 0 {
		t.Errorf("it is back: %v", es)
	}
}

func TestReserveIsForOneAtATime(t *testing.T) {
	v := vault.Open(t.TempDir())
	if err := v.Put(t.Context(), entry("a", all), value("x")); err != nil {
		t.Fatal(err)
	}
	l, err := v.Reserve(t.Context(), "a", all)
	if err != nil {
		t.Fatal(err)
	}
	other, err := v.Reserve(t.Context(), "b", all)
	if err != nil {
		t.Fatal("another secret waits as well:", err)
	}
	other.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := v.Reserve(ctx, "a", all); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("reserved twice: %v", err)
	}
	l.Unlock()
	if l, err = v.Reserve(t.Context(), "a", all); err != nil {
		t.Fatal(err)
	}
	l.Unlock()
}

func TestSeveralProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			cmd := exec.Command(exe)
			cmd.Env = append(os.Environ(), "VAULT_TEST_DIR="+dir, fmt.Sprintf("VAULT_TEST_ID=%d", i))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	v := vault.Open(dir)
	es, err := v.List()
	if err != nil || len(es) != 80 {
		t.Fatalf("%d secrets, %v", len(es), err)
	}
	for _, e := range es {
		if _, s, err := v.Get(e.Service, e.Scope); err != nil || string(s.Value.Expose()) != "v" {
			t.Errorf("%s: %v", e.Service, err) // sealed with another key than the one that stayed
		}
	}
}

func BenchmarkFind(b *testing.B) {
	v := vault.Open(b.TempDir())
	if err := v.Put(b.Context(), entry("a", all), value("token")); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := v.Find("a", "repository k", "t"); err != nil {
			b.Fatal(err)
		}
	}
}
