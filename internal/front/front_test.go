package front

import (
	"os/exec"
	"strings"
	"testing"
)

// What the front links is made ready before each command, whether it is needed or
// not.
func TestTheFrontLinksLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "github.com/kitbox-dev/kitbox/cmd/kitbox").Output()
	if err != nil {
		t.Fatal(err)
	}
	heavy := []string{"net/http", "crypto/tls", "crypto/x509", "oras.land/", "github.com/opencontainers/", "github.com/klauspost/", "go.yaml.in/", "github.com/vishvananda/",
		"github.com/google/nftables", "github.com/miekg/dns", "golang.org/x/net", "golang.org/x/text", "github.com/moby/"}
	pkgs := strings.Fields(string(out))
	if len(pkgs) < 100 {
		t.Fatalf("go list knows %d packages", len(pkgs))
	}
	for _, p := range pkgs {
		for _, h := range heavy {
			if strings.HasPrefix(p, h) {
				t.Errorf("%s is linked", p)
			}
		}
	}
}

func TestWhatIsCarriedOutHere(t *testing.T) {
	for args, want := range map[string]string{
		"":                        "",
		"version":                 "",
		"--help":                  "",
		"--no-input":              "",
		"help exec":               "",
		"__complete exec ":        "",
		"run --rm k -- exec":      "",
		"exec t -- true":          "exec",
		"--no-input exec t true":  "exec",
		"exec -it -u root t sh":   "exec",
		"exec -e A=d t -- ls -d":  "exec",
		"exec --env=d t true":     "exec",
		"exec -d t -- true":       "",
		"exec -id t -- true":      "",
		"exec --detach t -- true": "",
		"exec -u root -d t true":  "",
		"exec":                    "exec", // which says what is missing
		"exec --help":             "exec",
		"stop t":                  "stop",
		"stop -q --grace 0s t":    "stop",
		"stop --grace=5s t":       "", // as good, and longer to look at
		"stop t u":                "",
		"stop":                    "",
		"stop --grace t":          "",
		"stop --help":             "",
		"stop --json t":           "",
		"start t":                 "start",
		"start -q t":              "start",
		"start -q":                "",
		"start t u":               "",
		"restart t":               "",
		"stopp t":                 "",
	} {
		got := ""
		if i := pick(strings.Fields(args)); i >= 0 {
			got = quick[i].command.Names[0]
		}
		if got != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
}
