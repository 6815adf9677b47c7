package install_test

import (
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/spec/lint/install"
	"github.com/kitbox-dev/kitbox/spec/lint/shell"
)

func TestSoftware(t *testing.T) {
	// A package is shown as name, "=" if it is pinned, "." if it is local.
	for src, want := range map[string]string{
		"apt-get install -y --no-install-recommends gh jq=1.7 -o A=b c/stable": "gh jq= c/stable",
		"apt-get -y install gh":                   "gh",
		"apt-get update":                          "",
		"apt install ./gh.deb /x.deb":             ".= .=",
		"apk add --no-cache -t .deps gh~2 jq":     "gh= jq",
		"apk add --no-network gh":                 "",
		"dnf install -y gh":                       "gh",
		"npm install -g a @b/c @b/d@1.2 e@latest": "a @b/c @b/d= e",
		"npm ci":                                 "=",
		"npm run install":                        "",
		"npm i ../a":                             ".=",
		"pip3 install -r r.txt a==1 b>=2 c[d]":   "= a= b c",
		"pip3.12 install a":                      "a",
		"python3 -m pip install -U a":            "a",
		"python3 x.py install a":                 "",
		"pip install --no-index a":               "",
		"pip install -e . --target /x a":         ".= a",
		"uv tool install a==1":                   "a=",
		"pipx install a":                         "a",
		"go install x.org/a/cmd/b@latest":        "b",
		"go install x.org/a/v2@v2.1.0":           "a=",
		"go install ./cmd/x":                     ".=",
		"go build ./...":                         "",
		"cargo install ripgrep":                  "ripgrep",
		"cargo install ripgrep --version 14.1.0": "ripgrep=",
		"cargo install --path .":                 "",
		"gem install a -v 1":                     "a=",
		"gem install a":                          "a",
		"apt-get install $A b$C":                 "= b=",
		"make install":                           "",
		"apt-get":                                "",
	} {
		var got []string
		for _, p := range install.Software(shell.Simple(shell.Parse(src).Commands[0])) {
			s := p.Name
			if p.Local {
				s += "."
			}
			if p.Pinned {
				s += "="
			}
			got = append(got, s)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", src, got, want)
		}
	}
}

func TestDownloads(t *testing.T) {
	for src, want := range map[string]string{
		"curl -fsSL https://A.example/x -o /x":              "curl a.example",
		"curl https://a.example:8443/x ftp://u:p@b.example": "curl a.example, curl b.example",
		"curl -H X:https://a.example https://b.example":     "curl b.example",
		"curl -d https://a.example https://b.example":       "curl b.example",
		"curl a.example": "",
		"curl http://localhost http://127.0.0.1 http://[::1]:1 http://host.docker.internal": "",
		"curl --unix-socket /s http://x":             "",
		"curl https://$H/x":                          "",
		"wget -qO- https://a.example":                "wget a.example",
		"git clone https://a.example/x":              "git a.example",
		"git clone git@a.example:x/y":                "git a.example",
		"git clone /srv/x":                           "",
		"git config url.https://a.example":           "",
		"npm install -g x":                           "npm ",
		"npm install --registry https://a.example x": "npm a.example",
		"pip install git+https://a.example/x":        "pip a.example",
		"npm run https://a.example":                  "",
		"echo https://a.example":                     "",
		"apt-get install ./x.deb":                    "",
	} {
		var got []string
		for _, d := range install.Downloads(shell.Simple(shell.Parse(src).Commands[0])) {
			got = append(got, d.Program+" "+d.Host)
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%q: %q, want %q", src, got, want)
		}
	}
}
