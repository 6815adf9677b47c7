package escape

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// field is one field of a request as HTTP/2 sends it, unchecked.
type field struct{ name, value string }

// http2Request is a request of HTTP/2 with the pseudo fields in order.
func http2Request(method, authority, path string, more ...field) []field {
	return append([]field{{":method", method}, {":scheme", "https"}, {":authority", authority}, {":path", path}}, more...)
}

// http2Say sends a request for each list of fields over one connection to name
// and returns nil when the last is answered with 200.
func http2Say(name, body string, requests ...[]field) error {
	return http2Do(name, uint32(2*len(requests)-1), func(f *http2.Framer, head func(...field) []byte) error {
		for i, fields := range requests {
			id := uint32(2*i + 1)
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head(fields...), EndHeaders: true, EndStream: body == ""}); err != nil {
				return err
			}
			if body != "" {
				if err := f.WriteData(id, true, []byte(body)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// http2Do has say write what it likes on a connection to name, and returns nil when
// the stream last is answered with 200. What head returns is good until it is called
// again.
func http2Do(name string, last uint32, say func(f *http2.Framer, head func(...field) []byte) error) error {
	t, err := secure(name, 443, name, "h2")
	if err != nil {
		return broken(err)
	}
	defer t.Close()
	if t.ConnectionState().NegotiatedProtocol != "h2" {
		return broken(errors.New("no HTTP/2 was agreed on"))
	}
	if _, err := io.WriteString(t, http2.ClientPreface); err != nil {
		return broken(err)
	}
	f := http2.NewFramer(t, t)
	f.AllowIllegalWrites = true
	if err := f.WriteSettings(); err != nil {
		return broken(err)
	}
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	err = say(f, func(fields ...field) []byte {
		block.Reset()
		for _, x := range fields {
			_ = enc.WriteField(hpack.HeaderField{Name: x.name, Value: x.value}) // a buffer takes all
		}
		return block.Bytes()
	})
	if err != nil {
		return err
	}
	t.SetReadDeadline(time.Now().Add(patience))
	status := ""
	dec := hpack.NewDecoder(4096, nil)
	for {
		fr, err := f.ReadFrame()
		if err != nil {
			return fmt.Errorf("before the answer: %w", err)
		}
		switch fr := fr.(type) {
		case *http2.HeadersFrame:
			fs, err := dec.DecodeFull(fr.HeaderBlockFragment())
			if err != nil {
				return err
			}
			if fr.StreamID == last && len(fs) > 0 {
				status = fs[0].Value
			}
			if fr.StreamID == last && fr.StreamEnded() {
				return ended(status)
			}
		case *http2.DataFrame:
			if fr.StreamID == last && fr.StreamEnded() {
				return ended(status)
			}
		case *http2.RSTStreamFrame:
			if fr.StreamID == last {
				return fmt.Errorf("the stream was reset: %v", fr.ErrCode)
			}
		case *http2.GoAwayFrame:
			return fmt.Errorf("the connection was ended: %v", fr.ErrCode)
		}
	}
}

func ended(status string) error {
	if status != "200" {
		return errors.New("status " + status)
	}
	return nil
}

// http2Tricks are attempts within HTTP/2, which has three places for the host and
// none for the end of a line.
func http2Tricks() []attempt {
	trick := func(name, tries string, fields func(mark string) []field) attempt {
		return attempt{name: "h2-" + name, tries: tries, in: plain, at: plain, arrives: true,
			attack:  func(w *world) error { return http2Say(boundName, "", fields(w.Mark)) },
			control: func(w *world) error { return http2Say(boundName, "", http2Request("GET", boundName, "/ok/"+w.Mark)) }}
	}
	// To servers that speak HTTP/1 only, so the boundary has to translate.
	down := func(name, tries, body string, fields func(mark string) []field) attempt {
		return attempt{name: "h2-down-" + name, tries: tries, in: plain, at: plain, arrives: true,
			attack: func(w *world) error {
				return http2Say(clName, fmt.Sprintf(body, w.Mark), fields(w.Mark), http2Request("GET", clName, "/ok/second"))
			},
			control: func(w *world) error { return http2Say(clName, "", http2Request("GET", clName, "/ok/"+w.Mark)) }}
	}
	hidden := "GET /secret/%s HTTP/1.1\r\nHost: " + clName + "\r\n\r\n"
	return []attempt{
		trick("authority", "a forbidden authority on an allowed connection", func(m string) []field {
			return http2Request("GET", m+"."+deniedName, "/ok/x")
		}),
		trick("coalesced", "another allowed host on a connection that was made for one", func(m string) []field {
			return http2Request("GET", otherName, "/ok/"+m)
		}),
		trick("host-beside-authority", "a host that is not the authority", func(m string) []field {
			return http2Request("GET", boundName, "/ok/x", field{"host", m + "." + deniedName})
		}),
		trick("host-for-authority", "a forbidden host and no authority", func(m string) []field {
			return []field{{":method", "GET"}, {":scheme", "https"}, {":path", "/ok/x"}, {"host", m + "." + deniedName}}
		}),
		trick("authority-with-user", "an authority with a user in it", func(m string) []field {
			return http2Request("GET", boundName+"@"+m+"."+deniedName, "/ok/x")
		}),
		trick("authority-twice", "two authorities", func(m string) []field {
			return append([]field{{":authority", boundName}}, http2Request("GET", deniedName, "/ok/"+m)...)
		}),
		trick("path-twice", "two paths", func(m string) []field {
			return append(http2Request("GET", boundName, "/ok/x"), field{":path", "/secret/" + m})
		}),
		trick("method-twice", "two methods", func(m string) []field {
			return append(http2Request("GET", boundName, "/ok/"+m), field{":method", "DELETE"})
		}),
		trick("method-override", "a field that makes another method of it", func(m string) []field {
			return http2Request("POST", boundName, "/ok/"+m, field{"x_http_method_override", "DELETE"})
		}),
		trick("path-absolute", "a path that is the URL of a forbidden host", func(m string) []field {
			return http2Request("GET", boundName, "http://"+deniedName+"/ok/"+m)
		}),
		trick("path-without-slash", "a path that does not begin with a slash", func(m string) []field {
			return http2Request("GET", boundName, "ok/"+m)
		}),
		trick("path-beyond", "a path beyond the bounds", func(m string) []field { return http2Request("GET", boundName, "/secret/"+m) }),
		trick("scheme", "another scheme than the connection's", func(m string) []field {
			return []field{{":method", "GET"}, {":scheme", "http"}, {":authority", boundName + ":80"}, {":path", "/ok/" + m}}
		}),
		trick("connect", "a tunnel to a forbidden host", func(m string) []field {
			return []field{{":method", "CONNECT"}, {":authority", m + "." + deniedName + ":443"}}
		}),
		trick("extended-connect", "a tunnel for a WebSocket", func(m string) []field {
			return append(http2Request("CONNECT", boundName, "/ok/"+m), field{":protocol", "websocket"})
		}),
		trick("pseudo-late", "a pseudo field behind the others", func(m string) []field {
			return []field{{":method", "GET"}, {":scheme", "https"}, {":authority", boundName}, {"x-a", "b"}, {":path", "/ok/" + m}}
		}),
		trick("upper-case", "a field in upper case", func(m string) []field {
			return http2Request("GET", boundName, "/ok/x", field{"X-Mark", m})
		}),
		trick("connection-fields", "fields that belong to a connection of HTTP/1", func(m string) []field {
			return http2Request("GET", boundName, "/ok/"+m, field{"connection", "upgrade"}, field{"upgrade", "h2c"})
		}),
		down("header-injection", "a value with the end of a line and a request in it", "", func(m string) []field {
			return http2Request("GET", clName, "/ok/x", field{"x-a", "b\r\n\r\nGET /secret/" + m + " HTTP/1.1\r\nx: "})
		}),
		down("name-injection", "a name with the end of a line in it", "", func(m string) []field {
			return http2Request("GET", clName, "/ok/x", field{"x-a: b\r\n" + m, "c"})
		}),
		down("path-injection", "a path with the end of a line in it", "", func(m string) []field {
			return http2Request("GET", clName, "/ok/x HTTP/1.1\r\nHost: x\r\n\r\nGET /secret/"+m, field{"x-a", "b"})
		}),
		down("space-in-path", "a target with a space in it, which ends it in HTTP/1", "", func(m string) []field {
			return http2Request("GET", clName, "/ok/x?a HTTP/1.1 "+m)
		}),
		down("method-injection", "a method with a request in it", "", func(m string) []field {
			return http2Request("GET /secret/"+m+" HTTP/1.1\r\nHost: "+clName+"\r\n\r\nGET", clName, "/ok/x")
		}),
		down("length", "a length that is not that of the body", hidden, func(string) []field {
			return http2Request("POST", clName, "/ok/x", field{"content-length", "0"})
		}),
		down("lengths", "two lengths", hidden, func(string) []field {
			return http2Request("POST", clName, "/ok/x", field{"content-length", "0"}, field{"content-length", "70"})
		}),
		down("transfer-encoding", "chunks, which HTTP/2 does not know", "0\r\n\r\n"+hidden, func(string) []field {
			return http2Request("POST", clName, "/ok/x", field{"transfer-encoding", "chunked"})
		}),
	}
}
