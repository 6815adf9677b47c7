package checkout

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNetrc(t *testing.T) {
	const text = `# comment machine host.example login no password no
machine other.example login o password op
macdef init
machine host.example login evil password macro

machine host.example
  login me
  account x
  password s3cret # not this
machine host.example login second password second
default login anonymous password guest
machine late.example login late password late
`
	for host, want := range map[string]string{"host.example": "me s3cret", "HOST.example": "me s3cret", "other.example": "o op", "none.example": "anonymous guest", "late.example": "anonymous guest"} {
		l, err := parseNetrc([]byte(text), host)
		if err != nil || l.user+" "+l.password != want {
			t.Errorf("%s: %q %q, %v; want %s", host, l.user, l.password, err, want)
		}
	}
	if l, err := parseNetrc([]byte("machine a.example login x"), "a.example"); err == nil {
		t.Errorf("no password: %v", l)
	}
	if s := fmt.Sprintf("%v %+v %#v %s %q", login{"me", "s3cret"}, login{"me", "s3cret"}, login{"me", "s3cret"}, login{"me", "s3cret"}, login{"me", "s3cret"}); strings.Contains(s, "s3cret") {
		t.Errorf("printed: %s", s)
	}
	file := filepath.Join(t.TempDir(), "netrc")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	getenv := func(string) string { return file }
	if _, err := netrc("host.example", getenv); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that all can read: %v", err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := netrc("host.example", getenv); err != nil || l.user != "me" {
		t.Errorf("%v, %v", l, err)
	}
}
