package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

// maxHello bounds a ClientHello. A post-quantum one has 1.5 KiB, and with
// tickets and GREASE still well under 16.
const maxHello = 64 << 10

var (
	errHello   = errors.New("hello read") // ends the handshake once the hello is known
	errTooLong = fmt.Errorf("ClientHello of more than %d bytes", maxHello)
)

// looksTLS reports whether b can be the beginning of TLS, and whether more bytes
// are needed to know. A record of any kind counts: servers pass over warnings that
// come before a ClientHello, whose server name is looked for all the same.
func looksTLS(b []byte) (yes, more bool) {
	switch {
	case len(b) > 0 && (b[0] < 0x14 || b[0] > 0x18): // change_cipher_spec to heartbeat
		return false, false
	case len(b) < 2:
		return true, true
	}
	return b[1] == 0x03, false // version 3.x
}

// A recorder lets crypto/tls parse a ClientHello without consuming it: what it
// reads is kept to be sent on, and what it writes goes nowhere.
type recorder struct {
	net.Conn
	read []byte // all that came from Conn
	off  int    // how much of it the parser has had
}

func (r *recorder) Read(p []byte) (int, error) {
	if r.off == len(r.read) {
		room := maxHello - len(r.read)
		if room <= 0 {
			return 0, errTooLong
		}
		n, err := r.Conn.Read(p[:min(len(p), room)])
		r.read = append(r.read, p[:n]...)
		r.off += n
		return n, err
	}
	n := copy(p, r.read[r.off:])
	r.off += n
	return n, nil
}

func (r *recorder) Write(p []byte) (int, error)      { return len(p), nil }
func (r *recorder) Close() error                     { return nil }
func (r *recorder) SetDeadline(time.Time) error      { return nil }
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }
func (r *recorder) more() error                      { _, err := r.fill(); return err }
func (r *recorder) fill() (int, error) {
	var b [512]byte
	n, err := r.Conn.Read(b[:])
	r.read = append(r.read, b[:n]...)
	if n > 0 {
		err = nil
	}
	return n, err
}

// serverName parses the ClientHello at the beginning of r and returns its SNI,
// empty if there is none. A hello that crypto/tls cannot read is an error: a
// server that is more lenient might see another name in it.
func (r *recorder) serverName() (string, error) {
	name, seen := "", false
	r.off = 0
	err := tls.Server(r, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			name, seen = h.ServerName, true
			return nil, errHello
		},
	}).Handshake()
	if seen {
		return name, nil
	}
	return "", err
}
