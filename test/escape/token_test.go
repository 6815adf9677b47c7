package escape

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Where tokens are issued and used, and what stands for them inside.
const (
	failName     = "fail.test" // likewise, and always fails
	authName     = "auth.test" // issues tokens of OAuth at /token
	resName      = "res.test"  // takes them
	regName      = "reg.test"  // a registry, of which the host has a login
	tokName      = "tok.test"  // issues that registry's tokens at /token
	mirrorName   = "mirror.test"
	accessTokens = "stands-for-the-access-token"
	failToken    = "stands-for-what-always-fails"
	refreshToken = "stands-for-the-refresh-token"
	tokenKit     = `{"type":"com.docker.sandbox/credential@1","config":{"service":"idp","phase":["runtime"],"oauth":{
  "tokenEndpoint":{"host":"auth.test","path":"/token"},"resourceHosts":["res.test"],
  "sentinels":{"accessToken":"stands-for-the-access-token","refreshToken":"stands-for-the-refresh-token"}}}},
 {"type":"com.docker.sandbox/credential@1","config":{"service":"fails","phase":["runtime"],"oauth":{
  "tokenEndpoint":{"host":"fail.test","path":"/token"},"resourceHosts":["res.test"],
  "sentinels":{"accessToken":"stands-for-what-never-works","refreshToken":"stands-for-what-always-fails"}}}},
 {"type":"com.docker.sandbox/docker-auth@1","config":{"registry":"reg.test"}},`
)

// What the host has beside its secret. All of it has the secret in it.
func (o *outside) access() string  { return o.secret + "-access" }
func (o *outside) refresh() string { return o.secret + "-refresh" }
func (o *outside) login() string   { return o.secret + "-login" }

// tokens is what the host stores, and dockerConfig its logins.
func (o *outside) tokens() []byte {
	b, _ := json.Marshal(map[string]any{"accessToken": o.access(), "refreshToken": o.refresh()})
	return b
}

func (o *outside) dockerConfig() []byte {
	auth := base64.StdEncoding.EncodeToString([]byte("robot:" + o.login()))
	b, _ := json.Marshal(map[string]any{"auths": map[string]any{regName: map[string]string{"auth": auth}}})
	return b
}

// issue answers for the hosts of tokens, and reports whether the request was for one.
// What it is asked to do with a token it does: careless servers do all of this.
func (o *outside) issue(w http.ResponseWriter, r *http.Request, body string) bool {
	host, _, _ := strings.Cut(r.Host, ":")
	form, _ := url.ParseQuery(body)
	how := r.URL.Query().Get("how") + form.Get("how")
	switch {
	case host == authName && r.URL.Path == "/token":
		o.grant(w, how, map[string]any{"access_token": o.access(), "refresh_token": o.refresh(), "expires_in": 3600, "token_type": "Bearer", "account_id": "served"}, form.Get("code"))
	case host == failName && r.URL.Path == "/token":
		o.grant(w, how, map[string]any{"error": "invalid_client", "error_description": "served"}, form.Get("refresh_token"))
	case host == tokName && r.URL.Path == "/token":
		if _, password, _ := r.BasicAuth(); password != o.login() && form.Get("password") != o.login() {
			http.Error(w, `{"details":"no login"}`, http.StatusUnauthorized)
			return true
		}
		o.grant(w, how, map[string]any{"token": o.access(), "refresh_token": o.refresh(), "expires_in": 300, "account_id": "served"}, o.login())
	case host == regName && strings.HasPrefix(r.URL.Path, "/v2/") && r.Header.Get("Authorization") != "Bearer "+o.access():
		w.Header().Set("Www-Authenticate", `Bearer realm="https://`+tokName+`/token",service="`+regName+`"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
	case host == regName && r.URL.Path == "/v2/repeat":
		repeat(w, r, "body", strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	case host == regName && r.URL.Path == "/v2/blob":
		http.Redirect(w, r, "https://"+mirrorName+"/blob", http.StatusTemporaryRedirect)
	default:
		return false
	}
	return true
}

// grant is an answer with tokens, told as how wants it.
func (o *outside) grant(w http.ResponseWriter, how string, doc map[string]any, given string) {
	status := http.StatusOK
	switch how {
	case "error":
		status, doc = http.StatusBadRequest, map[string]any{"error": "invalid_grant", "error_description": "served: " + given}
	case "code":
		status, doc = http.StatusBadRequest, map[string]any{"error": given, "error_description": "served"}
	case "page":
		http.Error(w, "<h1>"+given+"</h1>", http.StatusInternalServerError)
		return
	case "redirect":
		w.Header().Set("Location", "https://"+openName+"/?t="+given)
		w.WriteHeader(http.StatusFound)
		return
	case "cookie":
		w.Header().Set("Set-Cookie", "t="+o.access())
		w.Header().Set("X-Token", o.access())
	case "fields":
		doc["note"] = "the token is " + o.access()
		doc["id_token"] = o.access()
		doc["ticket"] = o.access() // a name that says nothing
		doc["organization"] = map[string]any{"name": "of " + o.access(), "id": o.refresh(), "key": o.refresh()}
		doc["scope"] = "served " + o.access()
		doc["deep"] = map[string]any{"list": []any{o.access(), map[string]any{"x": o.refresh()}}}
		doc["at_"+o.access()] = "a name"
	case "twice":
		b, _ := json.Marshal(doc)
		fmt.Fprintf(w, "%s,\"access_token\":%q}", strings.TrimSuffix(string(b), "}"), o.access()+"-2")
		return
	case "escaped":
		b, _ := json.Marshal(doc)
		io.WriteString(w, strings.Replace(string(b), `:"served"`, `:"served `+`\u0073`+o.access()[1:]+`"`, 1))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(doc)
}

// standIn is what the sandbox has in the place of the login.
func standIn() (string, error) {
	paths, _ := filepath.Glob("/home/*/.docker/config.json")
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			return "", broken(err)
		}
		if m := regexp.MustCompile(`"auth":\s*"([^"]+)"`).FindSubmatch(b); m != nil {
			return "Authorization: Basic " + string(m[1]), nil
		}
	}
	return "", broken(errors.New("no config.json of docker"))
}

// knowsTokens has the boundary learn where the registry's tokens are issued.
func knowsTokens() error {
	t, err := secure(regName, 443, regName)
	if err != nil {
		return broken(err)
	}
	if got, err := talk(t, 1, get(regName, "/v2/")); !strings.HasPrefix(got, "401") {
		return broken(fmt.Errorf("the registry answered %q, %w", got, err))
	}
	return nil
}

// stood is the request for a token with the login's stand-in, and what it is answered.
func stood(path string) (string, error) {
	auth, err := standIn()
	if err == nil {
		err = knowsTokens()
	}
	if err != nil {
		return "", err
	}
	return answer(tokName, lines("GET "+path+" HTTP/1.1", "Host: "+tokName, auth))
}

// answer is all of an answer over TLS, its header too. From the outside, direct is.
func answer(host, request string) (string, error) { return answerAt(host, host, request) }

func direct(host, request string) (string, error) { return answerAt(publicAddr, host, request) }

func answerAt(addr, host, request string) (string, error) {
	t, err := secure(addr, 443, host)
	if err != nil {
		return "", err
	}
	defer t.Close()
	if _, err := io.WriteString(t, request); err != nil {
		return "", err
	}
	return whole(t)
}

// posted is a request with a form, for a token.
func posted(host, path string, form url.Values, more ...string) string {
	body := form.Encode()
	return lines(append([]string{"POST " + path + " HTTP/1.1", "Host: " + host, "Content-Type: application/x-www-form-urlencoded", fmt.Sprint("Content-Length: ", len(body))}, more...)...) + body
}

// exposed returns nil if the secret is in an answer, and says so if nobody out there
// has answered at all.
func exposed(w *world, text string, err error, seen ...string) error {
	switch {
	case err != nil && text == "":
		return broken(err)
	case strings.Contains(strings.ToLower(text), strings.ToLower(string(w.Secret))):
		return nil
	}
	for _, s := range seen {
		if !strings.Contains(text, s) {
			return broken(fmt.Errorf("%q is not in %.300q", s, text))
		}
	}
	return fmt.Errorf("%.200q", text)
}

// tokenTricks are attempts on tokens: those that the host has, and those that are
// issued while a sandbox asks for them.
func tokenTricks() []attempt {
	grant := func(how string) url.Values {
		return url.Values{"grant_type": {"authorization_code"}, "code": {"x"}, "how": {how}}
	}
	// Of a server that does what it must not, directly and by the boundary.
	issued := func(name, tries, how string, seen ...string) attempt {
		return attempt{name: "oauth-" + name, tries: tries, in: plain, at: host,
			attack: func(w *world) error {
				text, err := answer(authName, posted(authName, "/token", grant(how)))
				return exposed(w, text, err, seen...)
			},
			control: func(w *world) error {
				text, err := direct(authName, posted(authName, "/token", grant(how)))
				return exposed(w, text, err)
			}}
	}
	// Of a server that repeats what it is shown, the refresh token.
	failed := func(name, tries, how string, seen ...string) attempt {
		ask := func(token string) string {
			return posted(failName, "/token", url.Values{"grant_type": {"refresh_token"}, "refresh_token": {token}, "how": {how}})
		}
		return attempt{name: "oauth-" + name, tries: tries, in: plain, at: host,
			attack: func(w *world) error {
				text, err := answer(failName, ask(failToken))
				return exposed(w, text, err, seen...)
			},
			control: func(w *world) error {
				text, err := direct(failName, ask(string(w.Secret)+"-refresh"))
				return exposed(w, text, err)
			}}
	}
	// Of the tokens inside, somewhere else than where they are taken.
	used := func(w *world) error {
		return present(w, resName, resName, resName, "/", "Authorization: Bearer "+accessTokens)
	}
	misused := func(name, tries string, attack func(w *world) error) attempt {
		return attempt{name: "oauth-" + name, tries: tries, in: plain, at: plain, arrives: true, control: used, attack: attack}
	}
	refreshed := func(path string, more ...string) func(w *world) error {
		return func(w *world) error {
			_, err := answer(authName, posted(authName, path, url.Values{"grant_type": {"refresh_token"}, "refresh_token": {refreshToken}}, append(more, tag(w))...))
			return err
		}
	}
	// Of a token service, by the stand-in for a login.
	served := func(name, tries, how string, seen ...string) attempt {
		return attempt{name: "docker-auth-" + name, tries: tries, in: plain, at: host,
			attack: func(w *world) error {
				text, err := stood("/token?service=" + regName + "&how=" + how)
				return exposed(w, text, err, seen...)
			},
			control: func(w *world) error {
				login := base64.StdEncoding.EncodeToString([]byte("robot:" + string(w.Secret) + "-login"))
				text, err := direct(tokName, lines("GET /token?how="+how+" HTTP/1.1", "Host: "+tokName, "Authorization: Basic "+login))
				return exposed(w, text, err)
			}}
	}
	pulled := func(w *world) error {
		text, err := stood("/token?service=" + regName)
		m := regexp.MustCompile(`"token":"([^"]+)"`).FindStringSubmatch(text)
		if m == nil {
			return broken(fmt.Errorf("no token in %.200q, %w", text, err))
		}
		return present(w, regName, regName, regName, "/v2/x", "Authorization: Bearer "+m[1])
	}
	shown := func(name, tries string, attack func(w *world, auth string) error) attempt {
		return attempt{name: "docker-auth-" + name, tries: tries, in: plain, at: plain, arrives: true, control: pulled,
			attack: func(w *world) error {
				auth, err := standIn()
				if err == nil {
					err = knowsTokens()
				}
				if err != nil {
					return err
				}
				return attack(w, auth)
			}}
	}
	// Stand-ins for tokens, elsewhere.
	carried := func(name, tries string, attack func(w *world, bearer string) error) attempt {
		return attempt{name: "docker-auth-" + name, tries: tries, in: plain, at: plain, arrives: true, control: pulled,
			attack: func(w *world) error {
				text, err := stood("/token?service=" + regName)
				m := regexp.MustCompile(`"token":"([^"]+)"`).FindStringSubmatch(text)
				if m == nil {
					return broken(fmt.Errorf("no token in %.200q, %w", text, err))
				}
				return attack(w, "Authorization: Bearer "+m[1])
			}}
	}
	return []attempt{
		issued("answer", "the tokens in an answer that issues them", "", accessTokens, "served"),
		failed("in-an-error", "a description of an error with the token in it", "error", "invalid_grant"),
		failed("in-a-code", "the code of an error that is the token", "code", "served"),
		failed("in-a-page", "a page of an error with the token in it", "page", "500"),
		failed("in-a-redirect", "a redirect with the token in it", "redirect", "302"),
		issued("in-a-cookie", "a cookie and a header with a token", "cookie", accessTokens),
		issued("in-fields", "other fields with tokens, and one that is called by it", "fields", accessTokens),
		issued("twice", "a field that is there twice", "twice", accessTokens),
		issued("escaped", "a text with a token that is escaped", "escaped", accessTokens),
		misused("access-elsewhere", "what stands for the access token, at another host", func(w *world) error {
			return present(w, openName, openName, openName, "/", "Authorization: Bearer "+accessTokens)
		}),
		misused("access-at-its-issuer", "the same, where tokens are issued", func(w *world) error {
			return present(w, authName, authName, authName, "/other", "Authorization: Bearer "+accessTokens)
		}),
		misused("access-in-another-header", "the same, in another header and the query", func(w *world) error {
			return present(w, resName, resName, resName, "/?t="+accessTokens, "X-T: "+accessTokens, "Cookie: t="+accessTokens)
		}),
		misused("access-without-tls", "the same, without TLS", func(w *world) error {
			return say(resName, 80, lines("GET / HTTP/1.1", "Host: "+resName, tag(w), "Authorization: Bearer "+accessTokens))
		}),
		misused("refresh-as-access", "what stands for the refresh token, where the other is taken", func(w *world) error {
			return present(w, resName, resName, resName, "/", "Authorization: Bearer "+refreshToken)
		}),
		misused("other-path", "a refresh at another path of the same host", refreshed("/other")),
		misused("path-below", "a refresh below its path", refreshed("/token/x")),
		misused("path-with-dots", "a refresh at a path that some servers take for another", refreshed("/token/../other")),
		misused("refresh-elsewhere", "a refresh at another host", func(w *world) error {
			return sayTLS(openName, openName, posted(openName, "/token", url.Values{"grant_type": {"refresh_token"}, "refresh_token": {refreshToken}}, tag(w)))
		}),
		misused("refresh-without-tls", "a refresh without TLS", func(w *world) error {
			return say(authName, 80, posted(authName, "/token", url.Values{"grant_type": {"refresh_token"}, "refresh_token": {refreshToken}}, tag(w)))
		}),
		misused("refresh-by-another-name", "a refresh for another host on the same connection", func(w *world) error {
			_, err := answer(authName, posted(openName, "/token", url.Values{"grant_type": {"refresh_token"}, "refresh_token": {refreshToken}}, tag(w)))
			return err
		}),
		served("answer", "the token in an answer that issues it", "", "kitbox-token-"),
		served("in-an-error", "an error with the login in it", "error", "400"),
		served("in-a-page", "a page of an error with login and token", "page", "500"),
		served("in-a-redirect", "a redirect with a token in it", "redirect", "302"),
		served("in-a-cookie", "a cookie and a header with a token", "cookie", "kitbox-token-"),
		served("in-fields", "other fields with tokens", "fields", "kitbox-token-"),
		served("twice", "a field that is there twice", "twice"),
		served("escaped", "a text with a token that is escaped", "escaped", "kitbox-token-"),
		{name: "docker-auth-repeated", tries: "a registry that repeats the token it is shown", in: plain, at: host,
			attack: func(w *world) error {
				text, err := stood("/token?service=" + regName)
				m := regexp.MustCompile(`"token":"([^"]+)"`).FindStringSubmatch(text)
				if m == nil {
					return broken(fmt.Errorf("no token in %.200q, %w", text, err))
				}
				text, err = answer(regName, lines("GET /v2/repeat HTTP/1.1", "Host: "+regName, "Authorization: Bearer "+m[1]))
				return exposed(w, text, err, proven(string(w.Secret)+"-access"))
			},
			control: func(w *world) error {
				text, err := direct(regName, lines("GET /v2/repeat HTTP/1.1", "Host: "+regName, "Authorization: Bearer "+string(w.Secret)+"-access"))
				return exposed(w, text, err)
			}},
		shown("login-at-another-path", "the login's stand-in at another path of its token service", func(w *world, auth string) error {
			return anyOf(present(w, tokName, tokName, tokName, "/other", auth), present(w, tokName, tokName, tokName, "/token/x", auth),
				present(w, tokName, tokName, tokName, "/token/../other", auth), present(w, tokName, tokName, tokName, "/Token", auth))
		}),
		shown("login-at-the-registry", "the same, at the registry, which wants tokens", func(w *world, auth string) error {
			return anyOf(present(w, regName, regName, regName, "/v2/x", auth), present(w, regName, regName, regName, "/", auth))
		}),
		shown("login-elsewhere", "the same, at another host", func(w *world, auth string) error { return present(w, openName, openName, openName, "/token", auth) }),
		shown("login-without-tls", "the same, without TLS", func(w *world, auth string) error {
			return anyOf(say(tokName, 80, lines("GET /token HTTP/1.1", "Host: "+tokName, tag(w), auth)), say(regName, 80, lines("GET /v2/ HTTP/1.1", "Host: "+regName, tag(w), auth)))
		}),
		shown("login-without-a-server-name", "the same, by TLS that names no host", func(w *world, auth string) error {
			return present(w, tokName, "", tokName, "/token", auth)
		}),
		carried("token-elsewhere", "a token's stand-in at another host", func(w *world, bearer string) error {
			return present(w, openName, openName, openName, "/v2/x", bearer)
		}),
		carried("token-at-a-mirror", "the same, where the registry sends its clients", func(w *world, bearer string) error {
			return present(w, mirrorName, mirrorName, mirrorName, "/blob", bearer)
		}),
		carried("token-at-its-issuer", "the same, where it was issued", func(w *world, bearer string) error {
			return present(w, tokName, tokName, tokName, "/other", bearer)
		}),
		carried("token-in-another-header", "the same, in another header and the query", func(w *world, bearer string) error {
			_, value, _ := strings.Cut(bearer, "Bearer ")
			return present(w, regName, regName, regName, "/v2/x?t="+value, "X-T: "+value, "Cookie: t="+value)
		}),
		carried("token-without-tls", "the same, without TLS", func(w *world, bearer string) error {
			return say(regName, 80, lines("GET /v2/x HTTP/1.1", "Host: "+regName, tag(w), bearer))
		}),
	}
}
