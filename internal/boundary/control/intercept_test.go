package control_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/control"
	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// boundedGuest is a guest whose example.com admits GET below /ok only.
func boundedGuest(t testing.TB, h http.HandlerFunc, more ...plan.EgressRule) (g *guest, b *control.Boundary, log *decisions, client func(http2 bool) *http.Client) {
	t.Helper()
	i := inspect(t, "", h)
	log = newDecisions()
	rules := append(more, plan.EgressRule{Phase: plan.Runtime, Pattern: "example.com", Allow: true, Methods: []string{"GET"}, Paths: []string{"/ok/**"}, Source: "kit k"})
	policy, err := egress.New(rules)
	if err != nil {
		t.Fatal(err)
	}
	b = start(t, i.g, control.Config{Log: log.log, Policy: policy, Leaf: i.authority.Leaf, Roots: i.roots,
		Routes: []plan.Route{route("example.com", i.at), route("free.example", i.at)}})
	return i.g, b, log, i.client
}

func TestABoundedHostAdmitsItsRequestsOnly(t *testing.T) {
	free := plan.EgressRule{Phase: plan.Runtime, Pattern: "free.example", Allow: true, Source: "kit k"}
	g, _, log, client := boundedGuest(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/ok/") || r.Method != http.MethodGet {
			t.Errorf("%s %s arrived", r.Method, r.URL)
		}
		io.WriteString(w, "origin")
	}, free)
	for _, http2 := range []bool{false, true} {
		c := client(http2)
		r, err := c.Get("https://example.com/ok/x?token=secret")
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if string(body) != "origin" || r.ProtoMajor == 2 != http2 {
			t.Errorf("%s %q", r.Proto, body)
		}
		if names := r.TLS.PeerCertificates[0].DNSNames; len(names) != 1 || names[0] != "example.com" {
			t.Errorf("the certificate is for %v", names)
		}
		for _, rq := range []string{"POST /ok/x", "GET /other", "GET /ok/../x"} {
			m, p, _ := strings.Cut(rq, " ")
			req, _ := http.NewRequest(m, "https://example.com"+p, nil)
			r, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			r.Body.Close()
			if r.StatusCode != http.StatusForbidden {
				t.Errorf("%s: %d", rq, r.StatusCode)
			}
		}
	}
	d := log.wait(t, "an allowed request", func(d audit.Decision) bool { return d.Kind == audit.Request && d.Verdict == audit.Allow })
	if d.Method != http.MethodGet || d.Path != "/ok/x" || d.Rule != "example.com GET /ok/**" || strings.Contains(fmt.Sprint(d), "secret") {
		t.Errorf("logged %+v", d)
	}
	d = log.wait(t, "a refused request", func(d audit.Decision) bool { return d.Kind == audit.Request && d.Method == http.MethodPost })
	if d.Verdict != audit.Deny || !strings.Contains(d.Why, "there only GET /ok/**") {
		t.Errorf("logged %+v", d)
	}

	// What is not HTTP is reset, and so is a server that would speak first.
	c, err := g.dialName("ip4", "example.com", 443)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "SSH-2.0-client\r\n")
	if err := refused(c, nil); err != nil {
		t.Error(err)
	}
	log.wait(t, "the refusal of ssh", func(d audit.Decision) bool {
		return d.Kind == audit.Connect && d.Verdict == audit.Deny && strings.Contains(d.Why, "not HTTP")
	})

	// A host without bounds is passed through with its own certificate.
	raw, err := g.dialName("ip4", "free.example", 443)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	through := tls.Client(raw, &tls.Config{ServerName: "free.example", InsecureSkipVerify: true})
	if err := through.Handshake(); err != nil {
		t.Fatal(err)
	}
	if org := through.ConnectionState().PeerCertificates[0].Subject.Organization; len(org) != 1 || org[0] != "Acme Co" {
		t.Errorf("the certificate of %v", org)
	}
}

func TestAChangeOfPolicyEndsRequestsAndNeverUnseenOnes(t *testing.T) {
	began := make(chan struct{}, 1)
	g, b, log, client := boundedGuest(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "some")
		w.(http.Flusher).Flush()
		began <- struct{}{}
		<-r.Context().Done()
	})
	r, err := client(true).Get("https://example.com/ok/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	<-began
	deny := func(rs ...plan.EgressRule) *egress.Policy {
		p, err := egress.New(rs)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	allow := plan.EgressRule{Phase: plan.Runtime, Pattern: "example.com", Allow: true, Source: "kit k"}
	b.SetPolicy(deny(allow, plan.EgressRule{Phase: plan.Runtime, Pattern: "example.com", Methods: []string{"ANY"}, Paths: []string{"/ok/*"}, Source: "operator"}))
	if got, err := io.ReadAll(r.Body); err == nil {
		t.Errorf("%q arrived as the whole", got)
	}
	log.wait(t, "the cut", func(d audit.Decision) bool { return d.Kind == audit.Cut && d.Path == "/ok/stream" })

	// A connection that was carried unseen is cut when it would have to be
	// looked into.
	b.SetPolicy(deny(allow))
	c, err := g.dialName("ip4", "example.com", 443)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	log.wait(t, "the connection", func(d audit.Decision) bool {
		return d.Kind == audit.Connect && d.Verdict == audit.Allow && d.Rule == "example.com"
	})
	b.SetPolicy(deny(plan.EgressRule{Phase: plan.Runtime, Pattern: "example.com", Allow: true, Methods: []string{"GET"}, Source: "kit k"}))
	if err := refused(c, nil); err != nil {
		t.Error(err)
	}
	if n := b.Flows(); n > 1 {
		t.Errorf("%d flows are left", n)
	}
}

func TestWithoutAnAuthorityWhatMustBeLookedIntoIsRefused(t *testing.T) {
	g := newGuest(t)
	log := newDecisions()
	p, err := egress.New([]plan.EgressRule{{Phase: plan.Runtime, Pattern: "a.example", Allow: true, Methods: []string{"GET"}, Source: "kit k"}})
	if err != nil {
		t.Fatal(err)
	}
	start(t, g, control.Config{Log: log.log, Policy: p})
	if err := refused(g.dialName("ip4", "a.example", 80)); err != nil {
		t.Error(err)
	}
	log.wait(t, "the refusal", func(d audit.Decision) bool {
		return d.Verdict == audit.Deny && strings.Contains(d.Why, "cannot look into")
	})
}
