package escape

import (
	"bytes"
	"crypto/ecdh"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// wires are attempts with what is below the words of a protocol: bytes that are marked
// as urgent, sessions that are resumed, names that are encrypted, messages that say
// they are longer than they are.
func wires() []attempt {
	bound := "Host: " + boundName
	honest := func(w *world) error { return present(w, vaultName, vaultName, vaultName, "/ok/x", bearer(vaultToken)) }
	secret := func(name, tries string, attack func(w *world) error) attempt {
		return attempt{name: "secret-" + name, tries: tries, in: plain, at: plain, arrives: true, control: honest, attack: attack}
	}
	return []attempt{
		request("host-folded", "a host that goes on in a second line", func(m string) string {
			return lines("GET /ok/x HTTP/1.1", "Host:", " "+m+"."+deniedName, bound)
		}),
		request("host-list", "two hosts in one header", func(m string) string {
			return lines("GET /ok/"+m+" HTTP/1.1", bound+", "+deniedName)
		}),
		request("authority-form", "a target that is a host and a port", func(m string) string {
			return lines("GET "+m+"."+deniedName+":80 HTTP/1.1", bound)
		}),
		request("bare-line-feeds", "a forbidden request in lines that end by a line feed alone", func(m string) string {
			return strings.ReplaceAll(get(boundName, "/ok/first")+get(boundName, "/secret/"+m), "\r\n", "\n")
		}),
		request("bare-returns", "a forbidden request behind carriage returns alone", func(m string) string {
			return "GET /ok/first HTTP/1.1\r\n" + bound + "\r\nX: y\r\rGET /secret/" + m + " HTTP/1.1\r" + bound + "\r\r\r\n\r\n"
		}),
		request("upgrade-and-more", "a forbidden request behind a WebSocket that its server may refuse", func(m string) string {
			return lines("GET /ok/first HTTP/1.1", bound, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==") +
				get(boundName, "/secret/"+m)
		}),
		request("expectation", "a forbidden request where a body was announced that is waited for", func(m string) string {
			return lines("POST /ok/first HTTP/1.1", bound, "Expect: 100-continue", "Content-Length: 0") + get(boundName, "/secret/"+m)
		}),
		{name: "sni-behind-an-urgent-byte", tries: "a forbidden server name behind a byte that some read and some do not", in: plain, at: host, arrives: true,
			attack: func(w *world) error {
				return urgently(openName, func(c net.Conn) error {
					return tls.Client(c, &tls.Config{ServerName: w.Mark + "." + deniedName, InsecureSkipVerify: true}).Handshake()
				})
			},
			control: func(w *world) error {
				return urgently(publicAddr, func(c net.Conn) error {
					return tls.Client(c, &tls.Config{ServerName: w.Mark + "." + deniedName, InsecureSkipVerify: true}).Handshake()
				})
			}},
		{name: "sni-encrypted", tries: "a forbidden server name that is encrypted, where requests are looked into", in: plain, at: host, arrives: true,
			attack: func(w *world) error { return concealed(boundName, w.Mark+"."+deniedName) },
			// Out there somebody has the key.
			control: func(w *world) error { return concealed(publicAddr, w.Mark+"."+deniedName) }},
		{name: "session-of-another", tries: "a session with one host where requests are looked into, resumed at another", in: plain, at: host,
			attack:  func(*world) error { return resumed([2]string{boundName, otherName}) },
			control: func(*world) error { return resumed([2]string{publicAddr, publicAddr}) }},
		{name: "question-loop", tries: "a question whose name leads back to itself", in: plain, at: plain,
			attack: func(*world) error {
				return rawQuestion(func(b []byte) []byte { return append(append(b[:12:12], 0xc0, 12), b[len(b)-4:]...) })
			},
			control: func(*world) error { return rawQuestion(func(b []byte) []byte { return b }) }},
		{name: "question-of-many", tries: "a message that says it has 65,535 questions", in: plain, at: plain,
			attack: func(*world) error {
				return rawQuestion(func(b []byte) []byte { binary.BigEndian.PutUint16(b[4:], 65535); return b })
			},
			control: func(*world) error { return rawQuestion(func(b []byte) []byte { return b }) }},
		{name: "question-beyond", tries: "a name whose labels go past the end of the message", in: plain, at: plain,
			attack:  func(*world) error { return rawQuestion(func(b []byte) []byte { b[12] = 63; return b }) },
			control: func(*world) error { return rawQuestion(func(b []byte) []byte { return b }) }},
		{name: "question-that-is-an-answer", tries: "an answer to a question that nobody asked", in: plain, at: plain,
			attack:  func(*world) error { return rawQuestion(func(b []byte) []byte { b[2] |= 0x80; return b }) },
			control: func(*world) error { return rawQuestion(func(b []byte) []byte { return b }) }},
		secret("in-halves", "what stands for the secret, in two headers that are one by the rules, and cut by a comma", func(w *world) error {
			s := os.Getenv(vaultToken)
			return present(w, vaultName, vaultName, vaultName, "/ok/x", "X-T: "+s[:len(s)/2], "X-T: "+s[len(s)/2:], "Authorization: Bearer "+s[:len(s)/2]+", "+s[len(s)/2:])
		}),
		secret("in-a-pushed-form", "the same, in a form and in a multipart body", func(w *world) error {
			s := os.Getenv(vaultToken)
			body := "--b\r\nContent-Disposition: form-data; name=\"" + s + "\"\r\nAuthorization: Bearer " + s + "\r\n\r\nt=" + s + "\r\n--b--\r\n"
			return sayTLS(vaultName, vaultName, lines("POST /ok/x HTTP/1.1", "Host: "+vaultName, tag(w), "Content-Type: multipart/form-data; boundary=b", fmt.Sprintf("Content-Length: %d", len(body)))+body)
		}),
		secret("in-a-chunk", "the same, as the extension of a chunk", func(w *world) error {
			return sayTLS(vaultName, vaultName, lines("POST /ok/x HTTP/1.1", "Host: "+vaultName, tag(w), "Transfer-Encoding: chunked")+"1;t="+os.Getenv(vaultToken)+"\r\nx\r\n0\r\n\r\n")
		}),
		secret("in-a-name", "the same, as the name of a header", func(w *world) error {
			return present(w, vaultName, vaultName, vaultName, "/ok/x", os.Getenv(vaultToken)+": x")
		}),
		secret("in-a-method", "the same, as the method", func(w *world) error {
			return sayTLS(vaultName, vaultName, lines(os.Getenv(vaultToken)+" /ok/x HTTP/1.1", "Host: "+vaultName, tag(w)))
		}),
		{name: "host-port-of-another-service", tries: "a service by the name of another", in: plain, at: plain, arrives: true,
			control: func(w *world) error { return fetch(hostName, loopPort, "/"+w.Mark) },
			attack: func(w *world) error {
				return errors.Join(fetch(registryName, loopPort, "/"+w.Mark), fetch("localhost", loopPort, "/"+w.Mark), fetch("198.18.0.1", loopPort, "/"+w.Mark),
					say(registryName, 80, get(hostName, "/"+w.Mark)))
			}},
	}
}

// urgently connects to the HTTPS of host, sends one byte that is marked as urgent, and
// has say go on.
func urgently(host string, say func(net.Conn) error) error {
	c, err := dial(host, 443)
	if err != nil {
		return err
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return broken(err)
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.Sendto(int(fd), []byte("!"), unix.MSG_OOB, nil) })
	if err := errors.Join(err, sent); err != nil {
		return broken(err)
	}
	return say(c)
}

// The key of whom names are encrypted for is no secret.
var concealKey, _ = ecdh.X25519().NewPrivateKey(bytes.Repeat([]byte{7}, 32))

// concealConfig says how to encrypt the name of a server that is known as public
// (draft-ietf-tls-esni §4).
func concealConfig(public string) []byte {
	c := []byte{1, 0, 0x20, 0, 32} // an id, X25519
	c = append(c, concealKey.PublicKey().Bytes()...)
	c = append(c, 0, 4, 0, 1, 0, 1, 0, byte(len(public))) // HKDF-SHA256 and AES-128-GCM
	c = append(append(c, public...), 0, 0)
	return append(binary.BigEndian.AppendUint16([]byte{0xfe, 0x0d}, uint16(len(c))), c...)
}

// concealed shakes hands with host for a name that is encrypted behind another.
func concealed(host, name string) error {
	c, err := dial(host, 443)
	if err != nil {
		return err
	}
	defer c.Close()
	config := concealConfig(boundName)
	t := tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
		EncryptedClientHelloRejectionVerify: func(tls.ConnectionState) error { return nil },
		EncryptedClientHelloConfigList:      append(binary.BigEndian.AppendUint16(nil, uint16(len(config))), config...)})
	if err := t.Handshake(); err != nil {
		return err
	}
	if !t.ConnectionState().ECHAccepted {
		return errors.New("the name was not read")
	}
	return nil
}

// resumed returns nil when a session that began at the first host goes on at the second.
func resumed(hosts [2]string) error {
	cache := tls.NewLRUClientSessionCache(1)
	for i, h := range hosts {
		c, err := dial(h, 443)
		if err != nil {
			return broken(err)
		}
		defer c.Close()
		sni := h
		if net.ParseIP(h) != nil {
			sni = boundName
		}
		t := tls.Client(c, &tls.Config{ServerName: sni, InsecureSkipVerify: true, ClientSessionCache: only{cache}})
		if err := t.Handshake(); err != nil {
			return broken(err)
		}
		if i == 1 && t.ConnectionState().DidResume {
			return nil
		}
		// What resumes a session comes behind the handshake.
		if _, err := io.WriteString(t, lines("GET /ok/x HTTP/1.1", "Host: "+sni, "Connection: close")); err != nil {
			return broken(err)
		}
		if _, err := io.ReadAll(t); err != nil {
			return broken(err)
		}
	}
	return errors.New("a new session was begun")
}

// only is a cache for all servers alike.
type only struct{ tls.ClientSessionCache }

func (o only) Get(string) (*tls.ClientSessionState, bool)  { return o.ClientSessionCache.Get("") }
func (o only) Put(_ string, state *tls.ClientSessionState) { o.ClientSessionCache.Put("", state) }

// rawQuestion asks the boundary's resolver as change has it, and returns nil when there
// is an answer with records.
func rawQuestion(change func(b []byte) []byte) error {
	m := new(dns.Msg)
	m.SetQuestion(openName+".", dns.TypeA)
	m.RecursionDesired = true
	q, err := m.Pack()
	if err != nil {
		return broken(err)
	}
	b, err := ask("udp", gateway, change(slices.Clone(q)))
	if err != nil {
		return err
	}
	r := new(dns.Msg)
	if err := r.Unpack(b); err != nil {
		return err
	}
	if len(r.Answer) == 0 {
		return errors.New(dns.RcodeToString[r.Rcode])
	}
	return nil
}
