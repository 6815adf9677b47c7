package echo_test

import (
	"bytes"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kitbox-dev/kitbox/internal/boundary/echo"
)

const hidden = "REAL-secret-REAL-x"

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// given are secrets.
func given(texts ...string) (s echo.Secrets) {
	s.Add(texts...)
	return s
}

// answered is what the client gets of an answer to a request that was given s.
func answered(t testing.TB, s echo.Secrets, header http.Header, body io.Reader) (http.Header, string) {
	t.Helper()
	r := &http.Response{StatusCode: http.StatusOK, Header: header, Body: io.NopCloser(body)}
	s.Answer(r)
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
	stars := strings.Repeat("*", len(hidden))
	login := b64("x-access-token:" + hidden)
	bare := strings.TrimRight(login, "=")
	for _, c := range []struct {
		name       string
		given      []string
		body, want string
	}{
		{"in a text", []string{hidden}, `{"headers":{"Authorization":"Bearer ` + hidden + `"}}`, `{"headers":{"Authorization":"Bearer ` + stars + `"}}`},
		{"twice, and a part", []string{hidden}, hidden + hidden + "REAL-secret-", stars + stars + "REAL-secret-"},
		{"overlapping itself", []string{hidden}, "REAL-secret-" + hidden, "REAL-secret-" + stars},
		{"one of two", []string{hidden, "another-secret"}, "another-secret", strings.Repeat("*", 14)},
		{"as Basic", []string{hidden, "Basic " + login}, "got " + login + " " + bare + "; " + hidden, "got " + strings.Repeat("*", len(bare)) + strings.TrimPrefix(login, bare) + " " + strings.Repeat("*", len(bare)) + "; " + stars},
		{"a request that was given none", nil, "x " + hidden, "x " + hidden},
		{"too short to be sure", []string{"tiny", ""}, "a tiny thing", "a tiny thing"},
	} {
		for reader, wrap := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader, "halves": iotest.HalfReader, "with its end": iotest.DataErrReader} {
			_, got := answered(t, given(c.given...), http.Header{}, wrap(strings.NewReader(c.body)))
			if got != c.want {
				t.Errorf("%s, %s: %q, want %q", c.name, reader, got, c.want)
			}
		}
		h, _ := answered(t, given(c.given...), http.Header{"X-Echo": {"=" + c.body}}, strings.NewReader(""))
		if got := h.Get("X-Echo"); got != "="+c.want {
			t.Errorf("%s, in a header: %q", c.name, got)
		}
		if got := given(c.given...).Mask(c.body); got != c.want {
			t.Errorf("%s, as a text: %q", c.name, got)
		}
	}
	if _, got := answered(t, given(hidden), nil, strings.NewReader("")); got != "" {
		t.Errorf("of nothing came %q", got)
	}
	s := given(hidden)
	of := s
	of.Add("another-secret")
	if s.In("another-secret") || !of.In(hidden) {
		t.Error("copies share what was added")
	}
}

// TestAStreamIsNotHeldBack sends events one by one and awaits each.
func TestAStreamIsNotHeldBack(t *testing.T) {
	in, out := io.Pipe()
	r := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: in}
	given(hidden).Answer(r)
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
	up := &http.Response{StatusCode: http.StatusSwitchingProtocols, Header: http.Header{}, Body: both{in, nil, in}}
	given().Answer(up)
	if _, ok := up.Body.(both); !ok {
		t.Error("where nothing was given, a WebSocket is looked into")
	}
}

// FuzzMask compares with what the whole text becomes.
func FuzzMask(f *testing.F) {
	f.Add("some "+hidden+" REAL-secret-REAL", 3)
	f.Add("REAL-secret-REAL-secret-REAL-x", 1)
	f.Fuzz(func(t *testing.T, body string, size int) {
		_, got := answered(t, given(hidden), nil, &sized{r: strings.NewReader(body), n: 1 + size&0xff})
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
	body := bytes.Repeat([]byte("the quick brown fox REAL-sec "), 1<<15)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		r := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body))}
		given(hidden).Answer(r)
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, make([]byte, 32<<10)); err != nil {
			b.Fatal(err)
		}
		r.Body.Close()
	}
}

func TestWhatAServiceRepeatsBesideABodyIsMasked(t *testing.T) {
	r := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"X-" + strings.ToUpper(hidden): {"x"}, "X-Other": {"y"}}, Trailer: http.Header{"X-Announced": nil},
		Body: io.NopCloser(strings.NewReader("text"))}
	defer r.Body.Close()
	given(hidden).Answer(r)
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

// frame is one of a host's, of as many bytes of its length as size says.
func frame(size int, text string) string {
	n := len(text)
	b := []byte{0x81, byte(n)}
	switch size {
	case 2:
		b = []byte{0x81, 126, byte(n >> 8), byte(n)}
	case 8:
		b = append([]byte{0x81, 127, 0, 0, 0, 0}, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return string(b) + text
}

// both is a connection that a host writes to and the client reads, and the other way.
type both struct {
	io.Reader
	io.Writer
	io.Closer
}

func socket(r io.Reader, w io.Writer, s echo.Secrets) io.ReadWriteCloser {
	a := &http.Response{StatusCode: http.StatusSwitchingProtocols, Header: http.Header{}, Body: both{r, w, io.NopCloser(nil)}}
	s.Answer(a)
	return a.Body.(io.ReadWriteCloser)
}

func TestAWebSocketIsMaskedFrameByFrame(t *testing.T) {
	stars := strings.Repeat("*", len(hidden))
	long := strings.Repeat("x", 70_000)
	said := func(text string) string {
		return frame(1, "a "+text) + frame(1, "") + frame(2, text+text) + frame(8, long+text+long) + frame(1, "REAL-sec") + frame(1, "ret-REAL-x") + frame(1, text)
	}
	for reader, wrap := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader, "halves": iotest.HalfReader, "with its end": iotest.DataErrReader} {
		got, err := io.ReadAll(socket(wrap(strings.NewReader(said(hidden))), nil, given(hidden)))
		if err != nil || string(got) != said(stars) {
			t.Errorf("%s: %.300q, %v", reader, got, err)
		}
		// A frame that breaks off, and what is no frame.
		for _, rest := range []string{"", "\x81", "\x81\x7e\x00", "\x81\x20REAL-s", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xffREAL"} {
			got, err := io.ReadAll(socket(wrap(strings.NewReader(frame(1, "x")+rest)), nil, given(hidden)))
			if err != nil || string(got) != frame(1, "x")+rest {
				t.Errorf("%s: %q, %v, want it to end with %q", reader, got, err, rest)
			}
		}
	}
	var sent strings.Builder
	if _, err := io.WriteString(socket(nil, &sent, given(hidden)), hidden); err != nil || sent.String() != hidden {
		t.Errorf("to the host went %q, %v", sent.String(), err)
	}
}

// TestAFrameIsNotHeldBack has frames that end as a secret begins.
func TestAFrameIsNotHeldBack(t *testing.T) {
	in, out := io.Pipe()
	s := socket(in, nil, given(hidden))
	for _, text := range []string{"one", "two R", "REAL-secret-REAL-"} {
		go io.WriteString(out, frame(1, text))
		got := make([]byte, len(frame(1, text)))
		if _, err := io.ReadFull(s, got); err != nil || string(got) != frame(1, text) {
			t.Fatalf("%q, %v", got, err)
		}
	}
	out.CloseWithError(io.ErrUnexpectedEOF)
	if _, err := io.ReadAll(s); err != io.ErrUnexpectedEOF {
		t.Errorf("a broken connection ends with %v", err)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add([]byte(frame(1, hidden)+frame(2, hidden)), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, size uint8) {
		got, err := io.ReadAll(socket(&pieces{b, int(size) + 1}, nil, given(hidden)))
		if err != nil || len(got) != len(b) {
			t.Fatalf("%d bytes of %d, %v", len(got), len(b), err)
		}
		for i := range b {
			if got[i] != b[i] && got[i] != '*' {
				t.Fatalf("byte %d is %q and was %q", i, got[i], b[i])
			}
		}
	})
}

// pieces delivers b in those of size bytes.
type pieces struct {
	b    []byte
	size int
}

func (p *pieces) Read(to []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(to[:min(len(to), p.size)], p.b)
	p.b = p.b[n:]
	return n, nil
}
