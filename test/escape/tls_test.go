package escape

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"
)

// tlsTricks are attempts to say one name to the boundary and another to the
// server. Their control says the same to both.
func tlsTricks() []attempt {
	honest := func(w *world) error { return sayTLS(openName, openName, get(openName, "/"+w.Mark)) }
	trick := func(name, tries string, attack func(w *world) error) attempt {
		return attempt{name: name, tries: tries, in: plain, at: plain, arrives: true, attack: attack, control: honest}
	}
	return []attempt{
		trick("sni", "a forbidden server name on an allowed connection", func(w *world) error {
			return sayTLS(openName, w.Mark+"."+deniedName, get(openName, "/"))
		}),
		trick("sni-in-pieces", "the same, one byte a packet", func(w *world) error {
			return hello(openName, w.Mark+"."+deniedName, func(b []byte) [][]byte {
				var parts [][]byte
				for _, c := range b[:60] {
					parts = append(parts, []byte{c})
				}
				return append(parts, b[60:])
			})
		}),
		trick("sni-in-records", "the same, cut into records of TLS", func(w *world) error {
			return hello(openName, w.Mark+"."+deniedName, func(b []byte) [][]byte {
				var out []byte
				for body := b[5:]; len(body) > 0; {
					n := min(len(body), 20)
					out = append(binary.BigEndian.AppendUint16(append(out, b[:3]...), uint16(n)), body[:n]...)
					body = body[n:]
				}
				return [][]byte{out}
			})
		}),
		trick("sni-twice", "two server names in one hello, the second forbidden", func(w *world) error {
			return hello(openName, openName, func(b []byte) [][]byte {
				return [][]byte{secondName(b, openName, w.Mark+"."+deniedName)}
			})
		}),
		trick("sni-missing", "no server name, by which the server chooses, on an allowed connection", func(w *world) error {
			return sayTLS(openName, "", get(w.Mark+"."+deniedName, "/"))
		}),
		trick("sni-bounded", "a forbidden server name where requests are looked into", func(w *world) error {
			return sayTLS(boundName, w.Mark+"."+deniedName, get(boundName, "/ok/"))
		}),
		trick("sni-of-another", "the server name of another allowed host", func(w *world) error {
			return sayTLS(boundName, otherName, get(otherName, "/ok/"+w.Mark))
		}),
		trick("tls-in-tls", "a second handshake, for a forbidden name, within the first", func(w *world) error {
			t, err := secure(boundName, 443, boundName)
			if err != nil {
				return broken(err)
			}
			defer t.Close()
			inner := tls.Client(t, &tls.Config{ServerName: w.Mark + "." + deniedName, InsecureSkipVerify: true})
			return inner.Handshake()
		}),
		trick("not-http", "bytes that are no HTTP to a host with bounds", func(w *world) error {
			return say(boundName, 80, "SSH-2.0-"+w.Mark+"\r\n")
		}),
		trick("not-http-in-tls", "the same within TLS", func(w *world) error {
			return sayTLS(boundName, boundName, "\x00\x01"+w.Mark+"\r\n")
		}),
	}
}

// hello sends the ClientHello for sni to host as change cuts it, and returns
// nil when the server answers.
func hello(host, sni string, change func([]byte) [][]byte) error {
	b, err := firstWords(sni)
	if err != nil {
		return broken(err)
	}
	c, err := dial(host, 443)
	if err != nil {
		return err
	}
	defer c.Close()
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetNoDelay(true)
	}
	for _, part := range change(b) {
		if _, err := c.Write(part); err != nil {
			return err
		}
	}
	return greeted(c)
}

// greeted returns nil when a server goes on with a handshake.
func greeted(c net.Conn) error {
	c.SetReadDeadline(time.Now().Add(time.Second))
	var first [1]byte
	if _, err := io.ReadFull(c, first[:]); err != nil {
		return err
	}
	if first[0] == 0x15 {
		return errors.New("an alert")
	}
	return nil
}

// firstWords is a ClientHello for sni.
func firstWords(sni string) ([]byte, error) {
	mine, theirs := net.Pipe()
	go func() {
		_ = tls.Client(theirs, &tls.Config{ServerName: sni, InsecureSkipVerify: true}).Handshake()
		theirs.Close()
	}()
	defer mine.Close()
	b := make([]byte, 16<<10)
	n, err := mine.Read(b)
	return b[:n], err
}

// secondName adds a second entry to the server name extension of a hello.
func secondName(b []byte, first, second string) []byte {
	// The extension: type 0, its length, the list's length, type 0, the
	// name's length, the name.
	entry := append(binary.BigEndian.AppendUint16([]byte{0}, uint16(len(first))), first...)
	i := index(b, entry)
	if i < 0 {
		return b
	}
	more := append(binary.BigEndian.AppendUint16([]byte{0}, uint16(len(second))), second...)
	out := append([]byte{}, b[:i+len(entry)]...)
	out = append(append(out, more...), b[i+len(entry):]...)
	grow := func(at int) {
		binary.BigEndian.PutUint16(out[at:], binary.BigEndian.Uint16(out[at:])+uint16(len(more)))
	}
	grow(i - 2) // the list
	grow(i - 4) // the extension
	grow(3)     // the record
	grow(7)     // the message, whose length has three bytes
	// All extensions: behind version, random, session, suites, compression.
	at := 5 + 4 + 2 + 32
	at += 1 + int(out[at])
	at += 2 + int(binary.BigEndian.Uint16(out[at:]))
	at += 1 + int(out[at])
	grow(at)
	return out
}

func index(b, sub []byte) int {
	for i := 0; i+len(sub) <= len(b); i++ {
		if string(b[i:i+len(sub)]) == string(sub) {
			return i
		}
	}
	return -1
}
