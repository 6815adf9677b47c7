package credential_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kitbox-dev/kitbox/internal/boundary/credential"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

const hidden = "REAL-secret-REAL-x"

// answered is what the client gets of an answer to a request with header sent.
func answered(t testing.TB, p *credential.Presenter, host string, sent http.Header, header http.Header, body io.Reader) (http.Header, string) {
	t.Helper()
	r := &http.Response{StatusCode: http.StatusOK, Header: header, Body: io.NopCloser(body), Request: (&http.Request{Header: sent}).WithContext(t.Context())}
	defer r.Body.Close()
	p.Answered(runtime, host, 443, r)
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return r.Header, string(b)
}

func TestWhatAServiceRepeatsIsMasked(t *testing.T) {
	p := presenter(t, store{"github": hidden, "other": "tiny"}, github, other)
	stars := strings.Repeat("*", len(hidden))
	for _, c := range []struct{ name, host, sent, body, want string }{
		{"in a text", "api.github.example", "Bearer " + hidden, `{"headers":{"Authorization":"Bearer ` + hidden + `"}}`, `{"headers":{"Authorization":"Bearer ` + stars + `"}}`},
		{"twice, and a part", "api.github.example", "Bearer " + hidden, hidden + hidden + "REAL-secret-", stars + stars + "REAL-secret-"},
		{"overlapping itself", "api.github.example", "Bearer " + hidden, "REAL-secret-" + hidden, "REAL-secret-" + stars},
		{"as Basic", "github.example", "Basic " + b64("x-access-token:"+hidden), "got " + b64("x-access-token:"+hidden) + " " + hidden, "got " + strings.Repeat("*", len(strings.TrimRight(b64("x-access-token:"+hidden), "="))) + strings.Repeat("=", strings.Count(b64("x-access-token:"+hidden), "=")) + " " + stars},
		{"a request that carried the client's own", "api.github.example", "Bearer mine", "x " + hidden, "x " + hidden},
		{"a request that carried none", "api.github.example", "", "x " + hidden, "x " + hidden},
		{"another host", "evil.example", "Bearer " + hidden, "x " + hidden, "x " + hidden},
		{"too short to be sure", "api.github.example", "token tiny", "a tiny thing", "a tiny thing"},
	} {
		for reader, wrap := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader, "halves": iotest.HalfReader, "with its end": iotest.DataErrReader} {
			sent := http.Header{}
			if c.sent != "" {
				sent.Set("Authorization", c.sent)
			}
			h, got := answered(t, p, c.host, sent, http.Header{"X-Echo": {"=" + hidden}}, wrap(strings.NewReader(c.body)))
			if got != c.want {
				t.Errorf("%s, %s: %q, want %q", c.name, reader, got, c.want)
			}
			if masked := h.Get("X-Echo") == "="+stars; masked != (c.want != c.body) {
				t.Errorf("%s, %s: header %q", c.name, reader, h.Get("X-Echo"))
			}
		}
	}
	if _, got := answered(t, p, "api.github.example", http.Header{"Authorization": {"Bearer " + hidden}}, nil, strings.NewReader("")); got != "" {
		t.Errorf("of nothing came %q", got)
	}
}

// TestAStreamIsNotHeldBack sends events one by one and awaits each.
func TestAStreamIsNotHeldBack(t *testing.T) {
	p := presenter(t, store{"github": hidden}, github)
	in, out := io.Pipe()
	r := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: in, Request: (&http.Request{Header: http.Header{"Authorization": {"Bearer " + hidden}}}).WithContext(t.Context())}
	p.Answered(runtime, "api.github.example", 443, r)
	defer r.Body.Close()
	for _, event := range []string{"data: one\n\n", "data: R\n\n", "data: REAL-secret\n"} {
		go io.WriteString(out, event)
		got := make([]byte, len(event))
		if _, err := io.ReadFull(r.Body, got); err != nil || string(got) != event {
			t.Fatalf("%q, %v", got, err)
		}
	}
	out.CloseWithError(io.ErrUnexpectedEOF)
	if _, err := io.ReadAll(r.Body); err != io.ErrUnexpectedEOF {
		t.Errorf("a broken body ends with %v", err)
	}
	up := &http.Response{StatusCode: http.StatusSwitchingProtocols, Header: http.Header{}, Body: in, Request: r.Request}
	p.Answered(runtime, "api.github.example", 443, up)
	if up.Body != io.ReadCloser(in) {
		t.Error("an upgraded connection was wrapped")
	}
}

// FuzzMask compares with what the whole text becomes.
func FuzzMask(f *testing.F) {
	f.Add("some "+hidden+" REAL-secret-REAL", 3)
	f.Add("REAL-secret-REAL-secret-REAL-x", 1)
	p := presenter(f, store{"github": hidden}, github)
	f.Fuzz(func(t *testing.T, body string, size int) {
		sent := http.Header{"Authorization": {"Bearer " + hidden}}
		_, got := answered(t, p, "api.github.example", sent, nil, &sized{r: strings.NewReader(body), n: 1 + size&0xff})
		if want := strings.ReplaceAll(body, hidden, strings.Repeat("*", len(hidden))); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
	})
}

type sized struct {
	r io.Reader
	n int
}

func (s *sized) Read(p []byte) (int, error) { return s.r.Read(p[:min(len(p), s.n)]) }

func BenchmarkMasked(b *testing.B) {
	p := presenter(b, store{"github": hidden}, github)
	body := bytes.Repeat([]byte("the quick brown fox REAL-sec "), 1<<15)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		r := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body)),
			Request: (&http.Request{Header: http.Header{"Authorization": {"Bearer " + hidden}}}).WithContext(b.Context())}
		p.Answered(plan.Runtime, "api.github.example", 443, r)
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, make([]byte, 32<<10)); err != nil {
			b.Fatal(err)
		}
		r.Body.Close()
	}
}

func TestWhatAServiceRepeatsBesideABodyIsMasked(t *testing.T) {
	p := presenter(t, store{"github": hidden}, github)
	r := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"X-" + strings.ToUpper(hidden): {"x"}, "X-Other": {"y"}}, Trailer: http.Header{"X-Announced": nil},
		Body: io.NopCloser(strings.NewReader("text")), Request: (&http.Request{Header: http.Header{"Authorization": {"Bearer " + hidden}}}).WithContext(t.Context())}
	defer r.Body.Close()
	p.Answered(plan.Runtime, "api.github.example", 443, r)
	// Trailers are there when the body has ended.
	r.Trailer["X-Announced"], r.Trailer["X-Unasked"], r.Trailer["X-"+hidden] = []string{"a " + hidden}, []string{hidden}, []string{"x"}
	if b, err := io.ReadAll(r.Body); err != nil || string(b) != "text" {
		t.Errorf("%q, %v", b, err)
	}
	stars := strings.Repeat("*", len(hidden))
	if len(r.Header) != 1 || len(r.Trailer) != 2 || r.Trailer.Get("X-Announced") != "a "+stars || r.Trailer.Get("X-Unasked") != stars {
		t.Errorf("header %v, trailer %v", r.Header, r.Trailer)
	}
}
