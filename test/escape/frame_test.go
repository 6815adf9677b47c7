package escape

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/net/http2"
)

// frames are attempts with the frames of HTTP/2 rather than what is in them: heads in
// pieces and without end, and fields behind bodies.
func frames() []attempt {
	type say = func(f *http2.Framer, head func(...field) []byte) error
	honest := func(name string) func(w *world) error {
		return func(w *world) error { return http2Say(name, "", http2Request("GET", name, "/ok/"+w.Mark)) }
	}
	trick := func(name, tries, host string, last uint32, what func(w *world) say) attempt {
		return attempt{name: "frame-" + name, tries: tries, in: plain, at: plain, arrives: true, control: honest(host),
			attack: func(w *world) error { return http2Do(host, last, what(w)) }}
	}
	open := func(f *http2.Framer, id uint32, block []byte, more bool) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: !more})
	}
	// A body, and fields behind it.
	trailing := func(name, tries, host string, fields func(w *world) []field) attempt {
		return trick(name, tries, host, 1, func(w *world) say {
			return func(f *http2.Framer, head func(...field) []byte) error {
				err := open(f, 1, head(http2Request("POST", host, "/ok/x", field{"trailer", "x-t"})...), false)
				return errors.Join(err, f.WriteData(1, false, []byte("x")),
					f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head(fields(w)...), EndHeaders: true, EndStream: true}))
			}
		})
	}
	long := func(parts int) say {
		return func(f *http2.Framer, head func(...field) []byte) error {
			err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head(http2Request("GET", boundName, "/ok/x")...), EndStream: true})
			for i := range parts {
				if err != nil {
					return err
				}
				err = f.WriteContinuation(1, i == parts-1, head(field{fmt.Sprintf("x-%d", i), strings.Repeat("x", 1000)}))
			}
			return err
		}
	}
	ask := func(f *http2.Framer, block []byte) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block, EndHeaders: true, EndStream: true})
	}
	return []attempt{
		trick("path-in-a-continuation", "a second path in a part of the head that comes later", boundName, 1, func(w *world) say {
			return func(f *http2.Framer, head func(...field) []byte) error {
				err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head(http2Request("GET", boundName, "/ok/x")...), EndStream: true})
				return errors.Join(err, f.WriteContinuation(1, true, head(field{":path", "/secret/" + w.Mark})))
			}
		}),
		trick("continuation-of-another", "the rest of a head on another stream", boundName, 3, func(w *world) say {
			return func(f *http2.Framer, head func(...field) []byte) error {
				block := slices.Clone(head(http2Request("GET", boundName, "/ok/"+w.Mark)...))
				return errors.Join(open(f, 1, block[:5], true), f.WriteContinuation(3, true, block[5:]))
			}
		}),
		trick("frame-in-a-head", "another request amidst a head", boundName, 3, func(w *world) say {
			return func(f *http2.Framer, head func(...field) []byte) error {
				block := slices.Clone(head(http2Request("GET", boundName, "/ok/x")...))
				other := slices.Clone(head(http2Request("GET", boundName, "/ok/"+w.Mark)...))
				return errors.Join(open(f, 1, block[:5], true), f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: other, EndHeaders: true, EndStream: true}),
					f.WriteContinuation(1, true, block[5:]))
			}
		}),
		trick("stream-again", "a second request on a stream that has had one", boundName, 1, func(w *world) say {
			return func(f *http2.Framer, head func(...field) []byte) error {
				return errors.Join(ask(f, head(http2Request("GET", boundName, "/ok/x")...)), ask(f, head(http2Request("GET", boundName, "/secret/"+w.Mark)...)))
			}
		}),
		trick("stream-of-the-server", "a request on a stream that is not the client's to open", boundName, 2, func(w *world) say {
			return func(f *http2.Framer, head func(...field) []byte) error {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2, BlockFragment: head(http2Request("GET", boundName, "/ok/"+w.Mark)...), EndHeaders: true, EndStream: true})
			}
		}),
		trick("promise", "an answer that a client promises to a server", boundName, 2, func(w *world) say {
			return func(f *http2.Framer, head func(...field) []byte) error {
				return f.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: head(http2Request("GET", boundName, "/secret/"+w.Mark)...), EndHeaders: true})
			}
		}),
		trick("unknown-pseudo", "a pseudo field that nobody knows", boundName, 1, func(w *world) say {
			return func(f *http2.Framer, head func(...field) []byte) error {
				return ask(f, head(append([]field{{":mark", w.Mark}}, http2Request("GET", boundName, "/ok/"+w.Mark)...)...))
			}
		}),
		trick("status-of-a-request", "the pseudo field of an answer", boundName, 1, func(w *world) say {
			return func(f *http2.Framer, head func(...field) []byte) error {
				return ask(f, head(append([]field{{":status", "200"}}, http2Request("GET", boundName, "/ok/"+w.Mark)...)...))
			}
		}),
		trick("everything", "a request about the server as a whole", boundName, 1, func(w *world) say {
			return func(f *http2.Framer, head func(...field) []byte) error {
				return ask(f, head(http2Request("OPTIONS", boundName, "*", field{"x-mark", w.Mark})...))
			}
		}),
		trick("no-path", "a path of nothing", boundName, 1, func(w *world) say {
			return func(f *http2.Framer, head func(...field) []byte) error {
				return ask(f, head(http2Request("GET", boundName, "", field{"x-mark", w.Mark})...))
			}
		}),
		trailing("path-behind-a-body", "a path behind the body", boundName, func(w *world) []field { return []field{{":path", "/secret/" + w.Mark}} }),
		trailing("authority-behind-a-body", "an authority behind the body", boundName, func(w *world) []field { return []field{{":authority", w.Mark + "." + deniedName}} }),
		trailing("line-behind-a-body", "the end of a line, and a request, behind the body, to a server of HTTP/1", clName, func(w *world) []field {
			return []field{{"x-t", "a\r\n\r\nGET /secret/" + w.Mark + " HTTP/1.1\r\nHost: " + clName + "\r\n\r\n"}}
		}),
		trailing("length-behind-a-body", "a length, and what it is to be taken for, behind the body", clName, func(w *world) []field {
			return []field{{"content-length", "0"}, {"transfer-encoding", "chunked"}, {"host", w.Mark + "." + deniedName}}
		}),
		// Of one part it is answered.
		{name: "frame-head-without-end", tries: "a head that goes on for megabytes", in: plain, at: plain,
			attack: func(*world) error { return http2Do(boundName, 1, long(4096)) }, control: func(*world) error { return http2Do(boundName, 1, long(3)) }},
		{name: "secret-in-crumbs", tries: "what stands for a secret, in cookies of HTTP/2 that are put together", in: plain, at: plain, arrives: true,
			control: func(w *world) error { return present(w, vaultName, vaultName, vaultName, "/ok/x", bearer(vaultToken)) },
			attack: func(w *world) error {
				s := os.Getenv(vaultToken)
				return http2Say(vaultName, "", http2Request("GET", vaultName, "/ok/x", field{strings.ToLower(tryHeader), strings.ReplaceAll(w.Mark, "-", "~")},
					field{"cookie", "a=" + s}, field{"cookie", s[:len(s)/2]}, field{"cookie", s[len(s)/2:]}))
			}},
	}
}
