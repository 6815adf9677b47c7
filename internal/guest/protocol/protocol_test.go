package protocol_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
)

// stream is a net.Conn that reads from a buffer and writes to another.
type stream struct {
	net.Conn
	r io.Reader
	w bytes.Buffer
}

func (s *stream) Read(p []byte) (int, error)  { return s.r.Read(p) }
func (s *stream) Write(p []byte) (int, error) { return s.w.Write(p) }

func frame(kind byte, n uint32, body string) []byte {
	b := []byte{kind, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(b[1:], n)
	return append(b, body...)
}

func TestFramesArriveAsTheyWereSent(t *testing.T) {
	s := &stream{}
	c := protocol.NewConn(s)
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB, a message
	for _, f := range []protocol.Frame{
		{Kind: protocol.KindOut, Body: []byte("a\x00b")},
		{Kind: protocol.KindErr, Body: nil},
		{Kind: protocol.KindRequest, Body: big},
		{Kind: protocol.KindIn, Body: big[:protocol.MaxData]},
	} {
		if err := c.Write(f.Kind, f.Body); err != nil {
			t.Fatal(err)
		}
		s.r = bytes.NewReader(bytes.Clone(s.w.Bytes()))
		s.w.Reset()
		got, err := protocol.NewConn(s).Read()
		if err != nil || got.Kind != f.Kind || !bytes.Equal(got.Body, f.Body) {
			t.Errorf("frame of kind %d and %d bytes came back as kind %d, %d bytes, %v", f.Kind, len(f.Body), got.Kind, len(got.Body), err)
		}
	}
}

func TestBadFramesAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		bytes []byte
		want  error
	}{
		"nothing":                {nil, io.EOF},
		"half a header":          {[]byte{1, 0}, io.ErrUnexpectedEOF},
		"half a body":            {frame(4, 10, "abc"), io.ErrUnexpectedEOF},
		"no body":                {frame(4, 10, ""), io.ErrUnexpectedEOF},
		"kind zero":              {frame(0, 0, ""), protocol.ErrProtocol},
		"unknown kind":           {frame(200, 0, ""), protocol.ErrProtocol},
		"data over its bound":    {frame(4, protocol.MaxData+1, ""), protocol.ErrProtocol},
		"message over its bound": {frame(2, protocol.MaxMessage+1, ""), protocol.ErrProtocol},
		"four gigabytes":         {frame(2, 1<<32-1, ""), protocol.ErrProtocol},
		"credit of nine bytes":   {frame(6, 9, "123456789"), protocol.ErrProtocol},
	} {
		_, err := protocol.NewConn(&stream{r: bytes.NewReader(c.bytes)}).Read()
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

// A length must not cost memory before its bytes have come.
func TestALengthAloneAllocatesLittle(t *testing.T) {
	head := frame(byte(protocol.KindAnswer), protocol.MaxMessage, "x")
	per := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			protocol.NewConn(&stream{r: bytes.NewReader(head)}).Read()
		}
	}).AllocedBytesPerOp()
	if per > 1<<20 {
		t.Errorf("a header that announces %d bytes made the reader allocate %d", protocol.MaxMessage, per)
	}
}

func TestMessagesAreStrict(t *testing.T) {
	for _, bad := range []string{``, `{}{}`, `{"version":1,"surprise":true}`, `[]`, `{"version":"1"}`, `{"version":1}x`} {
		var a protocol.Answer
		if err := protocol.Decode([]byte(bad), &a); !errors.Is(err, protocol.ErrProtocol) {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}

func TestABudgetNeverGrows(t *testing.T) {
	b := protocol.NewBudget()
	if err := b.Add(1); !errors.Is(err, protocol.ErrProtocol) {
		t.Errorf("credit for nothing: %v", err)
	}
	if n := b.Take(10 * protocol.Window); n != protocol.Window {
		t.Errorf("a full budget gave %d", n)
	}
	if err := b.Add(5); err != nil {
		t.Fatal(err)
	}
	if n := b.Take(100); n != 5 {
		t.Errorf("took %d of 5", n)
	}
	done := make(chan int)
	go func() { done <- b.Take(1) }()
	b.Close()
	if n := <-done; n != 0 {
		t.Errorf("a closed budget gave %d", n)
	}
}

func TestAnInboxHoldsOneWindowAtMost(t *testing.T) {
	in := protocol.NewInbox()
	for range protocol.Window / protocol.MaxData {
		if err := in.Put(make([]byte, protocol.MaxData)); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.Put([]byte{1}); !errors.Is(err, protocol.ErrProtocol) {
		t.Errorf("data without credit: %v", err)
	}
	in = protocol.NewInbox()
	if err := in.Put(nil); err != nil {
		t.Fatal(err)
	}
	if err := in.Put([]byte{1}); !errors.Is(err, protocol.ErrProtocol) {
		t.Errorf("data after the end: %v", err)
	}
}

// A stream much longer than its window arrives whole although the receiver is
// slower than the sender, and nothing more than a window is ever under way.
func TestSendAndDrainKeepToTheWindow(t *testing.T) {
	a, b := net.Pipe()
	ca, cb := protocol.NewConn(a), protocol.NewConn(b)
	want := bytes.Repeat([]byte("abcdefg\x00\xff"), 300_000)
	budget := protocol.NewBudget()
	go func() { // the sender's reader of credit
		for {
			f, err := ca.Read()
			if err != nil {
				return
			}
			_, n, err := protocol.ParseCredit(f.Body)
			if err == nil {
				err = budget.Add(n)
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	go func() {
		if err := protocol.Send(ca, protocol.KindIn, bytes.NewReader(want), budget); err != nil {
			t.Error(err)
		}
	}()
	in := protocol.NewInbox()
	go func() {
		for {
			f, err := cb.Read()
			if err != nil {
				return
			}
			if err := in.Put(f.Body); err != nil {
				t.Error(err)
				in.Fail(err)
				return
			}
		}
	}()
	var got bytes.Buffer
	if err := in.Drain(cb, protocol.KindIn, &got); err != nil {
		t.Fatal(err)
	}
	a.Close()
	b.Close()
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes became %d", len(want), got.Len())
	}
}

func TestUnwantedDescriptorsAreDropped(t *testing.T) {
	a, b := unixPair(t)
	ca, cb := protocol.NewConn(a), protocol.NewConn(b)
	r, w := filePipe(t)
	if err := ca.WriteMessage(protocol.KindAnswer, protocol.Answer{}, w); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := cb.Read(); err != nil {
		t.Fatal(err)
	}
	if n := len(cb.TakeFDs()); n != 0 {
		t.Errorf("%d descriptors were taken", n)
	}
	// Nobody holds the writing end any more.
	r.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the pipe is still open: %v", err)
	}
}

func TestOnlyAsManyDescriptorsAsWanted(t *testing.T) {
	a, b := unixPair(t)
	ca, cb := protocol.NewConn(a), protocol.NewConn(b)
	cb.AcceptFDs(2)
	_, w := filePipe(t)
	if err := ca.WriteMessage(protocol.KindAnswer, protocol.Answer{}, w, w, w); err != nil {
		t.Fatal(err)
	}
	if _, err := cb.Read(); err != nil {
		t.Fatal(err)
	}
	fds := cb.TakeFDs()
	for _, f := range fds {
		f.Close()
	}
	if len(fds) > 2 {
		t.Errorf("%d descriptors were taken, 2 were wanted", len(fds))
	}
}

func FuzzRead(f *testing.F) {
	f.Add(frame(1, 2, "{}"))
	f.Add(frame(4, 3, "abc"))
	f.Add(append(frame(6, 5, "\x04\x00\x00\x00\x10"), frame(9, 12, `{"code":137}`)...))
	f.Add(frame(2, 1<<20, strings.Repeat("x", 100)))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := protocol.NewConn(&stream{r: bytes.NewReader(b)})
		var again bytes.Buffer
		for {
			fr, err := c.Read()
			if err != nil {
				break
			}
			s := &stream{}
			if err := protocol.NewConn(s).Write(fr.Kind, fr.Body); err != nil {
				t.Fatalf("read a frame that cannot be written: %v", err)
			}
			again.Write(s.w.Bytes())
			protocol.ParseCredit(fr.Body)
			protocol.ParseResize(fr.Body)
			protocol.ParseSignal(fr.Body)
		}
		if !bytes.HasPrefix(b, again.Bytes()) {
			t.Fatalf("%x became %x", b, again.Bytes())
		}
	})
}

func FuzzMessages(f *testing.F) {
	f.Add([]byte(`{"version":1,"op":"exec","exec":{"argv":["a"],"env":["A=b"],"dir":"/","uid":1,"gid":2,"gids":[3]}}`))
	f.Add([]byte(`{"version":1,"fault":{"code":"failed","text":"x"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []any{new(protocol.Request), new(protocol.Answer), new(protocol.Exit)} {
			if protocol.Decode(b, v) != nil {
				continue
			}
			out, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			w := reflect.New(reflect.TypeOf(v).Elem()).Interface()
			if err := protocol.Decode(out, w); err != nil {
				t.Fatalf("%q became %q, which is refused: %v", b, out, err)
			}
			out2, err := json.Marshal(w)
			if err != nil || !bytes.Equal(out, out2) {
				t.Fatalf("%q, then %q, then %q", b, out, out2)
			}
		}
	})
}

func TestReceiveTakesOneStreamAndItsCredit(t *testing.T) {
	for name, c := range map[string]struct {
		send func(*protocol.Conn) error
		want error
	}{
		"a clean end":     {func(*protocol.Conn) error { return nil }, io.ErrUnexpectedEOF},
		"another stream":  {func(c *protocol.Conn) error { return c.Write(protocol.KindOut, []byte("x")) }, protocol.ErrProtocol},
		"too much credit": {func(c *protocol.Conn) error { return c.WriteCredit(protocol.KindOut, protocol.Window) }, protocol.ErrProtocol},
		"after the end": {func(c *protocol.Conn) error {
			return errors.Join(c.Write(protocol.KindIn, nil), c.Write(protocol.KindIn, []byte("x")))
		}, protocol.ErrProtocol},
	} {
		a, z := unixPair(t)
		ours, theirs := protocol.NewConn(a), protocol.NewConn(z)
		in, b := protocol.NewInbox(), protocol.NewBudget()
		if got := b.Take(3); got != 3 {
			t.Fatal(got)
		}
		if err := errors.Join(theirs.Write(protocol.KindIn, []byte("data")), theirs.WriteCredit(protocol.KindOut, 3), c.send(theirs), theirs.Close()); err != nil {
			t.Fatal(err)
		}
		if err := protocol.Receive(ours, protocol.KindIn, in, b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		data := make([]byte, 8)
		if n, err := in.Read(data); string(data[:n]) != "data" || err != nil {
			t.Errorf("%s: %q, %v", name, data[:n], err)
		}
		if err := b.Add(1); !errors.Is(err, protocol.ErrProtocol) {
			t.Errorf("%s: the credit got lost", name)
		}
	}
}
