package control_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/credential"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/secret"
	"github.com/kitbox-dev/kitbox/internal/secret/vault"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// purse is a source of one secret, which can be another one at any time.
type purse struct {
	mu     sync.Mutex
	tokens *vault.Tokens // guarded by mu; nil: none is stored
}

func (p *purse) set(t *vault.Tokens) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tokens = t
}

func (p *purse) Tokens(context.Context, plan.Credential) (vault.Tokens, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tokens == nil {
		return vault.Tokens{}, kiterr.ErrNotFound
	}
	return *p.tokens, nil
}

func (p *purse) Token(ctx context.Context, c plan.Credential) (secret.Value, error) {
	t, err := p.Tokens(ctx, c)
	return t.Access, err
}

func (p *purse) Refresh(ctx context.Context, c plan.Credential, exchange func(secret.Value) (vault.Tokens, error)) (vault.Tokens, bool, error) {
	t, err := p.Tokens(ctx, c)
	if err == nil {
		t, err = exchange(t.Refresh)
	}
	return t, true, err
}

func (p *purse) Keep(_ context.Context, _ plan.Credential, t vault.Tokens) error {
	p.set(&t)
	return nil
}

func tokensOf(access, refresh string) *vault.Tokens {
	return &vault.Tokens{Access: secret.New([]byte(access)), Refresh: secret.New([]byte(refresh))}
}

// presented is a guest whose key.example is given c while it is granted.
func presented(t *testing.T, c plan.Credential, from credential.Source, h http.HandlerFunc) (*inspected, *control.Boundary, *decisions) {
	t.Helper()
	i := inspect(t, "key.example", h)
	log := newDecisions()
	p, err := credential.New([]plan.Credential{c}, from)
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, i.g, control.Config{Phase: plan.Install, Log: log.log, Policy: policy(t, "install allow key.example", "runtime allow key.example"),
		Leaf: i.authority.Leaf, Roots: i.roots, Presenter: p, Routes: []plan.Route{route("key.example", i.at)}})
	return i, b, log
}

// TestWhatWasGivenIsMaskedWhateverHasBecomeOfIt has a service that answers with what it
// was sent after the secret has been replaced or taken back.
func TestWhatWasGivenIsMaskedWhateverHasBecomeOfIt(t *testing.T) {
	const first, login = "REAL-first-secret", "bWU6UkVBTC1maXJzdC1zZWNyZXQ"
	from := new(purse)
	arrived, changed := make(chan string), make(chan struct{})
	i, _, _ := presented(t, plan.Credential{Service: "svc", Phases: []plan.Phase{plan.Install, plan.Runtime},
		Inject: []plan.Injection{{Domain: "key.example", Header: "Authorization", Basic: true, Username: "me"}}}, from,
		func(w http.ResponseWriter, r *http.Request) {
			user, password, _ := r.BasicAuth()
			arrived <- password
			<-changed
			w.Header().Set("X-Echo", r.Header.Get("Authorization"))
			fmt.Fprintf(w, "%s %s %s", user, password, r.Header.Get("Authorization"))
		})
	c := i.client(false)
	for what, to := range map[string]*vault.Tokens{"replaced": tokensOf("REAL-other-secret", ""), "taken back": nil} {
		from.set(tokensOf(first, ""))
		go func() {
			if got := <-arrived; got != first {
				t.Errorf("%s: the service got %q", what, got)
			}
			from.set(to)
			changed <- struct{}{}
		}()
		r, err := c.Get("https://key.example/")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		all := string(b) + r.Header.Get("X-Echo")
		if err != nil || !strings.HasPrefix(all, "me ***") || strings.Contains(all, first) || strings.Contains(all, login) {
			t.Errorf("%s: %q %q, %v", what, b, r.Header.Get("X-Echo"), err)
		}
	}
}

// TestWhatAWebSocketRepeatsIsMasked has a service that says what it was sent in frames,
// and would compress them.
func TestWhatAWebSocketRepeatsIsMasked(t *testing.T) {
	const key = "REAL-first-secret"
	from := new(purse)
	from.set(tokensOf(key, ""))
	offered := make(chan string, 1)
	i, _, _ := presented(t, plan.Credential{Service: "svc", Phases: []plan.Phase{plan.Install, plan.Runtime},
		Inject: []plan.Injection{{Domain: "key.example", Header: "Authorization", Format: "Bearer %s"}}}, from,
		websocket.Server{Handshake: func(_ *websocket.Config, r *http.Request) error {
			offered <- r.Header.Get("Sec-WebSocket-Extensions")
			return nil
		}, Handler: func(ws *websocket.Conn) {
			for {
				var said string
				if websocket.Message.Receive(ws, &said) != nil {
					return
				}
				_ = websocket.Message.Send(ws, said+" "+ws.Request().Header.Get("Authorization"))
			}
		}}.ServeHTTP)
	conf, err := websocket.NewConfig("wss://key.example/", "https://key.example/")
	if err != nil {
		t.Fatal(err)
	}
	conf.Header.Set("Sec-WebSocket-Extensions", "permessage-deflate")
	raw, err := i.client(false).Transport.(*http.Transport).DialContext(t.Context(), "tcp", "key.example:443")
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	ws, err := websocket.NewClient(conf, tls.Client(raw, &tls.Config{RootCAs: i.trusted, ServerName: "key.example"}))
	if err != nil {
		t.Fatal(err)
	}
	ws.SetDeadline(time.Now().Add(20 * time.Second))
	for _, say := range []string{"one", "R", strings.Repeat("long", 20_000)} {
		if err := websocket.Message.Send(ws, say); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := websocket.Message.Receive(ws, &got); err != nil || got != say+" Bearer "+strings.Repeat("*", len(key)) {
			t.Errorf("%.50q, %v", got, err)
		}
	}
	if got := <-offered; got != "" {
		t.Errorf("the service was offered %s", got)
	}
}

// TestTheClientCannotHaveASecretTakenOut lists the header that gets one among those
// which are for the next hop alone.
func TestTheClientCannotHaveASecretTakenOut(t *testing.T) {
	_, _, log, c, _ := keyed(t, new(setter), func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "key=%s hop=%s keep=%s", r.Header.Get("X-Key"), r.Header.Get("X-Hop"), r.Header.Get("X-Keep"))
	})
	for _, list := range []string{"X-Key", "close, x-key,X-Hop", "keep-alive,\tX-Hop , X-KEY"} {
		r, err := http.NewRequest(http.MethodGet, "https://key.example/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header["Connection"] = []string{list}
		r.Header["X-Hop"], r.Header["X-Keep"] = []string{"mine"}, []string{"mine"}
		a, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(a.Body)
		a.Body.Close()
		want := "key=real hop= keep=mine"
		if !strings.Contains(strings.ToLower(list), "x-hop") {
			want = "key=real hop=mine keep=mine"
		}
		if string(b) != want {
			t.Errorf("%q: the host got %q", list, b)
		}
	}
	if d := log.wait(t, "the request", func(d audit.Decision) bool { return d.Kind == audit.Request }); d.Credential != "svc" {
		t.Errorf("logged %+v", d)
	}
}

// TestAnExchangeEndsWithItsPhase has four exchanges that the server does not answer,
// which is as many as there are at a time, and one that waits for them.
func TestAnExchangeEndsWithItsPhase(t *testing.T) {
	from := new(purse)
	from.set(tokensOf("REAL-access", "REAL-refresh"))
	arrived, over := make(chan string, 9), make(chan struct{}, 9)
	i, b, log := presented(t, plan.Credential{Service: "svc", Phases: []plan.Phase{plan.Install}, OAuth: &plan.OAuth{
		TokenHost: "key.example", TokenPath: "/token", Hosts: []string{"key.example"}, Access: "ACCESS-SENTINEL", Refresh: "REFRESH-SENTINEL",
		AccessField: "access_token", RefreshField: "refresh_token", ExpiresField: "expires_in"}}, from,
		func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			if !strings.Contains(string(b), "REAL") {
				return // begun in the next phase, in which all of it is the sandbox's
			}
			arrived <- string(b)
			<-r.Context().Done()
			over <- struct{}{}
		})
	client := i.client(false)
	ask := func() (int, string) {
		r, err := client.PostForm("https://key.example/token", url.Values{"grant_type": {"refresh_token"}, "refresh_token": {"REFRESH-SENTINEL"}})
		if err != nil {
			return 0, err.Error()
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(b)
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if status, text := ask(); strings.Contains(text, "SENTINEL") || strings.Contains(text, "REAL") {
				t.Errorf("%d %s", status, text)
			}
		})
	}
	for range 4 {
		if got := <-arrived; !strings.Contains(got, "REAL-refresh") {
			t.Errorf("the server was asked %s", got)
		}
	}
	wait(t, "the fifth", func() bool { return b.Flows() == 5 })
	b.SetPhase(plan.Runtime)
	for range 4 {
		<-over // within the time of an answer, and not of an exchange
	}
	all.Wait()
	select {
	case got := <-arrived:
		t.Errorf("after the phase the server was asked %s", got)
	default:
	}
	used := func(d audit.Decision) bool {
		return d.Kind == audit.Request && d.Path == "/token" && d.Credential == "svc"
	}
	log.wait(t, "the use of the refresh token", used)
	log.wait(t, "the cut", func(d audit.Decision) bool {
		return d.Kind == audit.Cut && d.Path == "/token" && strings.Contains(d.Why, "svc")
	})
	lines := 0
	log.mu.Lock()
	for _, d := range log.all {
		if d.Kind == audit.Request {
			lines++
		}
	}
	log.mu.Unlock()
	if lines > 5 {
		t.Errorf("five requests are %d lines", lines)
	}
}
