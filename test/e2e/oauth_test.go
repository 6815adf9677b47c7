package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

const oauthKit = `schemaVersion: "3"
kind: workload
version: "1.0.0"
provides: [agent]
capabilities:
  - type: com.docker.sandbox/sbx@1
  - type: com.docker.sandbox/network-policy@1
    config:
      install: {allow: [api.cred.test, auth.cred.test]}
      runtime: {allow: [api.cred.test, auth.cred.test]}
  - type: com.docker.sandbox/credential@1
    config:
      service: cred-agent
      phase: runtime
      oauth:
        tokenEndpoint: {host: auth.cred.test, path: /token}
        resourceHosts: [api.cred.test]
        sentinels: {accessToken: proxy-managed-access, refreshToken: proxy-managed-refresh}
        credentialFile:
          path: ~/.agent/auth.json
          structure:
            agent: {accessToken: "{{.AccessToken}}", refreshToken: "{{.RefreshToken}}", expiresAt: "{{.ExpiresAt}}", scopes: "{{.Scopes}}"}
            primaryApiKey: "{{.PrimaryApiKey}}"
  - type: com.docker.sandbox/credential@1
    config:
      service: cred-setup
      phase: install
      oauth:
        resourceHosts: [api.cred.test]
        credentialFile: {path: ~/.agent/setup.toml, format: toml, structure: {tokens: {access: "{{.AccessToken}}"}}}
  - type: com.docker.sandbox/lifecycle@1
    config:
      install:
        - command: >-
            cp /home/agent/.agent/* /var/tmp/;
            curl -sS --max-time 10 https://api.cred.test/setup -H "Authorization: Bearer $(grep access /home/agent/.agent/setup.toml | cut -d'"' -f2)"; true
`

func TestTokensAreIssuedAndRefreshedOutside(t *testing.T) {
	access, refresh, setup, _ := values()
	s := secure(t, "*.cred.test")
	var issued atomic.Int32
	s.answer = func(w http.ResponseWriter, r *http.Request, body string) {
		if r.Host != "auth.cred.test" {
			fmt.Fprintf(w, "served %s\n", r.Host)
			return
		}
		if !strings.Contains(body, refresh) && !strings.Contains(body, "code=") {
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, `{"error":"invalid_grant"}`)
			return
		}
		n := issued.Add(1)
		fmt.Fprintf(w, `{"access_token":"%s-%d","refresh_token":"%s-%d","expires_in":3600,"account":{"name":"me"}}`, access, n, refresh, n)
	}
	dir := write(t, map[string]string{"kit.yaml": oauthKit + recipe})
	routes := []string{"--route", "api.cred.test=" + s.addr, "--route", "auth.cred.test=" + s.addr}
	if o := kitbox(t, append([]string{"create", "--name", "oauth", dir}, routes...)...); o.Code != 2 || !strings.Contains(o.Stderr, "'kitbox secret set cred-agent --oauth'") {
		t.Fatalf("without tokens: %+v", o)
	}
	store(t, "cred-agent", `{"agentOauth":{"accessToken":"`+access+`","refreshToken":"`+refresh+`","expiresAt":1893456000000,"scopes":["all"]}}`, "--oauth")
	store(t, "cred-setup", setup)
	create(t, "oauth", append([]string{dir}, routes...)...)

	// The install phase had its own file and token, and both have ended.
	if got := s.last(t, "api.cred.test/setup").Get("Authorization"); got != "Bearer "+setup {
		t.Errorf("while installing, the service got %q", got)
	}
	if out := ok(t, "exec", "-u", "0", "oauth", "--", "sh", "-c", "ls /var/tmp /home/agent/.agent"); !strings.Contains(out, "setup.toml") || strings.Count(out, "setup.toml") != 1 || strings.Count(out, "auth.json") != 1 {
		t.Errorf("the files of the phases:\n%s", out)
	}
	var file struct {
		Agent struct {
			AccessToken, RefreshToken string
			ExpiresAt                 int64
			Scopes                    []string
		}
		PrimaryAPIKey *string `json:"primaryApiKey"`
	}
	text := ok(t, "exec", "oauth", "--", "cat", "/home/agent/.agent/auth.json")
	if err := json.Unmarshal([]byte(text), &file); err != nil || file.Agent.AccessToken != "proxy-managed-access" || file.Agent.RefreshToken != "proxy-managed-refresh" ||
		file.Agent.ExpiresAt != 1893456000000 || len(file.Agent.Scopes) != 1 || file.PrimaryAPIKey != nil {
		t.Errorf("%v\n%s", err, text)
	}
	if out := ok(t, "exec", "oauth", "--", "stat", "-c", "%a %U", "/home/agent/.agent/auth.json"); out != "600 agent\n" {
		t.Errorf("the file is %q", out)
	}

	api := func(at, want string) {
		t.Helper()
		if o := sh(t, "oauth", "", "curl -sS --max-time 10 -H 'Authorization: Bearer proxy-managed-access' https://api.cred.test/"+at); o.Stdout != "served api.cred.test\n" {
			t.Fatalf("%+v", o)
		}
		if got := s.last(t, "api.cred.test/"+at).Get("Authorization"); got != "Bearer "+want {
			t.Errorf("%s: the service got %q, want the token %q", at, got, want)
		}
	}
	token := func(data string) outcome {
		return sh(t, "oauth", "", "curl -sS --max-time 10 -d '"+data+"' https://auth.cred.test/token")
	}
	api("before", access)
	for n := range 2 { // the second at once, which asks nobody
		o := token("grant_type=refresh_token&client_id=c&refresh_token=proxy-managed-refresh")
		if !strings.Contains(o.Stdout, `"access_token":"proxy-managed-access"`) || !strings.Contains(o.Stdout, `"refresh_token":"proxy-managed-refresh"`) || n == 0 && !strings.Contains(o.Stdout, `"name":"me"`) || strings.Contains(o.Stdout, "REAL") {
			t.Errorf("%+v", o)
		}
	}
	if issued.Load() != 1 {
		t.Errorf("tokens were issued %d times", issued.Load())
	}
	api("refreshed", access+"-1")
	if o := token("grant_type=refresh_token&refresh_token=of-somebody-else"); !strings.Contains(o.Stdout, "invalid_grant") {
		t.Errorf("%+v", o)
	}
	// A login inside is the sandbox's own, and its tokens stay outside too.
	if o := token("grant_type=authorization_code&code=xyz"); !strings.Contains(o.Stdout, `"access_token":"proxy-managed-access"`) || strings.Contains(o.Stdout, "REAL") {
		t.Errorf("%+v", o)
	}
	api("own", access+"-2")
	if out := ok(t, "secret", "ls"); !strings.Contains(out, "sandbox oauth") || strings.Contains(out, "REAL") {
		t.Errorf("after a login inside:\n%s", out)
	}
	ok(t, "stop", "oauth")
	ok(t, "start", "oauth")
	api("restarted", access+"-2")

	all := []string{access, refresh, setup}
	leaksInside(t, "oauth", all...)
	leaksOutside(t, all...)
}
