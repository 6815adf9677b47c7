package escape

import (
	"fmt"
	"strings"
)

// smuggling are attempts to have the boundary and a careless server disagree on
// where a request ends, so that the rest is one more request which nobody has
// judged. Each is aimed at a server that believes what the boundary does not.
//
// The control is the same bytes at the same server without a boundary.
func smuggling() []attempt {
	inner := func(server, mark string) string {
		return "GET /secret/" + mark + " HTTP/1.1\r\nHost: " + server + "\r\nX: "
	}
	// A body that is one chunk to who believes in chunks, and ends before
	// the hidden request to who believes the length.
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(s), s) }
	smuggle := func(name, tries, server string, text func(hidden string) string) attempt {
		send := func(at string, port int) func(w *world) error {
			return func(w *world) error {
				c, err := dial(at, port)
				if err != nil {
					return broken(err)
				}
				// A second request drives what is hidden in the first out.
				return answered(talk(c, 2, text(inner(server, w.Mark)), get(server, "/ok/second")))
			}
		}
		addr := map[string]string{clName: clAddr, teName: teAddr}[server]
		return attempt{name: "smuggle-" + name, tries: tries, in: plain, at: host, arrives: true, attack: send(server, 80), control: send(addr, 80)}
	}
	// Believes the length, so what is behind it is the next request.
	toCL := func(name, tries string, te ...string) attempt {
		return smuggle(name, tries, clName, func(hidden string) string {
			body := chunk(hidden)
			first := strings.Index(body, "\r\n") + 2
			return lines(append([]string{"POST /ok/first HTTP/1.1", "Host: " + clName, fmt.Sprintf("Content-Length: %d", first)}, te...)...) + body
		})
	}
	// Believes in chunks, so what is behind the last is the next request.
	toTE := func(name, tries string, te ...string) attempt {
		return smuggle(name, tries, teName, func(hidden string) string {
			body := "0\r\n\r\n" + hidden
			return lines(append([]string{"POST /ok/first HTTP/1.1", "Host: " + teName, fmt.Sprintf("Content-Length: %d", len(body))}, te...)...) + body
		})
	}
	return []attempt{
		toCL("te-cl", "a length beside chunks, for a server that believes the length", "Transfer-Encoding: chunked"),
		toTE("cl-te", "chunks beside a length, for a server that believes the chunks", "Transfer-Encoding: chunked"),
		toTE("te-space-before-colon", "a name with a space behind it", "Transfer-Encoding : chunked"),
		toTE("te-tab", "a value behind a tab", "Transfer-Encoding:\tchunked"),
		toTE("te-folded", "a value on a folded line", "Transfer-Encoding:", " chunked"),
		toTE("te-folded-other", "chunks on a line folded under another header", "X-Other: y", "\tTransfer-Encoding: chunked"),
		toTE("te-twice", "two encodings, one of which is none", "Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
		toTE("te-list", "a list of encodings", "Transfer-Encoding: identity, chunked"),
		toTE("te-unknown", "an encoding that is not quite that one", "Transfer-Encoding: xchunked"),
		toTE("te-quoted", "an encoding in quotes", `Transfer-Encoding: "chunked"`),
		toTE("te-vertical-tab", "a value behind a vertical tab", "Transfer-Encoding: \vchunked"),
		toTE("te-nul", "a name with a zero byte behind it", "Transfer-Encoding\x00: chunked"),
		toTE("te-case", "a name in strange letters", "tRANSFER-eNCODING: cHUNKED"),
		toTE("te-underscore", "a name with another separator", "Transfer-Encoding_: chunked"),
		toTE("te-bare-line-feed", "a header behind a bare line feed", "X-Other: y\nTransfer-Encoding: chunked"),
		toTE("te-bare-return", "a header behind a bare carriage return", "X-Other: y\r\n\rTransfer-Encoding: chunked"),
		smuggle("lengths-differ", "two lengths", clName, func(hidden string) string {
			return lines("POST /ok/first HTTP/1.1", "Host: "+clName, fmt.Sprintf("Content-Length: %d", len(hidden)), "Content-Length: 0") + hidden
		}),
		smuggle("length-list", "two lengths in one header", clName, func(hidden string) string {
			return lines("POST /ok/first HTTP/1.1", "Host: "+clName, fmt.Sprintf("Content-Length: %d, 0", len(hidden))) + hidden
		}),
		smuggle("length-plus", "a length with a sign", clName, func(hidden string) string {
			return lines("POST /ok/first HTTP/1.1", "Host: "+clName, fmt.Sprintf("Content-Length: %d", len(hidden)), "Content-Length: +0") + hidden
		}),
		smuggle("length-negative", "a negative length", clName, func(hidden string) string {
			return lines("POST /ok/first HTTP/1.1", "Host: "+clName, "Content-Length: -1") + hidden
		}),
		smuggle("length-too-large", "a length that overflows", clName, func(hidden string) string {
			return lines("POST /ok/first HTTP/1.1", "Host: "+clName, "Content-Length: 18446744073709551616") + hidden
		}),
		smuggle("chunk-overflow", "a chunk whose size overflows", teName, func(hidden string) string {
			return lines("POST /ok/first HTTP/1.1", "Host: "+teName, "Transfer-Encoding: chunked") + "10000000000000000\r\n\r\n" + hidden
		}),
		smuggle("chunk-extension", "a line feed in the extension of a chunk", teName, func(hidden string) string {
			return lines("POST /ok/first HTTP/1.1", "Host: "+teName, "Transfer-Encoding: chunked") + "0;x\n\r\n\r\n" + hidden
		}),
		smuggle("space-in-target", "a target with a space in it", clName, func(hidden string) string {
			return lines("GET /ok/first /secret HTTP/1.1", "Host: "+clName) + hidden
		}),
		smuggle("body-of-a-get", "a request in the body of one that has none as a rule", clName, func(hidden string) string {
			return lines("GET /ok/first HTTP/1.1", "Host: "+clName, fmt.Sprintf("Content-Length: %d", len(hidden)), "Content-Length : 0") + hidden
		}),
	}
}
