package escape

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// honestly is the control of attempts at the host with bounds: what it admits.
func honestly(w *world) error { return fetch(boundName, 80, "/ok/"+w.Mark) }

// request is an attempt that writes what it likes to the host with bounds.
func request(name, tries string, text func(mark string) string) attempt {
	return attempt{name: name, tries: tries, in: plain, at: plain, arrives: true, control: honestly,
		attack: func(w *world) error { return say(boundName, 80, text(w.Mark)) }}
}

// lines joins the head of a request, with an empty line behind.
func lines(ls ...string) string { return strings.Join(ls, "\r\n") + "\r\n\r\n" }

// httpTricks are attempts to say one request to the boundary and have another
// carried out.
func httpTricks() []attempt {
	bound := "Host: " + boundName
	list := []attempt{
		request("method", "a method beyond the bounds", func(m string) string { return lines("DELETE /ok/"+m+" HTTP/1.1", bound) }),
		request("method-in-lower-case", "a method that almost is an allowed one", func(m string) string { return lines("get /ok/"+m+" HTTP/1.1", bound) }),
		request("path", "a path beyond the bounds", func(m string) string { return get(boundName, "/secret/"+m) }),
		request("dot-segments", "a path that leaves its directory", func(m string) string { return get(boundName, "/ok/../secret/"+m) }),
		request("dot-segments-escaped", "the same, escaped", func(m string) string { return get(boundName, "/ok/%2e%2e/secret/"+m) }),
		request("dot-segments-escaped-twice", "the same, escaped twice", func(m string) string { return get(boundName, "/ok/%252e%252e/secret/"+m) }),
		request("slash-escaped", "an escaped slash", func(m string) string { return get(boundName, "/ok%2f..%2fsecret/"+m) }),
		request("backslash", "a backslash for a slash", func(m string) string { return get(boundName, `/ok/..\secret/`+m) }),
		request("dot-parameters", "a dot segment with a parameter, which Java servers cut off", func(m string) string { return get(boundName, "/ok/..;x=1/secret/"+m) }),
		request("empty-segment", "two slashes, which some servers take for one", func(m string) string { return get(boundName, "//ok/../secret/"+m) }),
		request("control-character", "a path with a line feed, escaped", func(m string) string { return get(boundName, "/ok/%0d%0aX:%20"+m) }),
		request("host", "another host in the header", func(m string) string { return get(m+"."+deniedName, "/ok/x") }),
		request("host-port", "another port in the header", func(m string) string { return get(boundName+":8080", "/ok/"+m) }),
		request("host-twice", "two hosts", func(m string) string {
			return lines("GET /ok/"+m+" HTTP/1.1", bound, "Host: "+deniedName)
		}),
		request("host-missing", "no host at all", func(m string) string { return lines("GET /ok/" + m + " HTTP/1.1") }),
		request("host-with-user", "a user before the host", func(m string) string { return get(boundName+"@"+m+"."+deniedName, "/ok/x") }),
		request("absolute-form", "a request to a proxy, for a forbidden host", func(m string) string {
			return lines("GET http://"+deniedName+"/ok/"+m+" HTTP/1.1", bound)
		}),
		request("absolute-form-of-the-host", "a request to a proxy, for the host itself and a path beyond", func(m string) string {
			return lines("GET http://"+boundName+"/secret/"+m+" HTTP/1.1", bound)
		}),
		request("connect", "a tunnel to a forbidden host", func(m string) string {
			return lines("CONNECT "+m+"."+deniedName+":443 HTTP/1.1", "Host: "+deniedName+":443")
		}),
		request("connect-to-the-host", "a tunnel to the host itself", func(m string) string {
			return lines("CONNECT "+boundName+":443 HTTP/1.1", "Host: "+boundName+":443", "X-Mark: "+m)
		}),
		request("trace", "a request that is reflected with all its headers", func(m string) string { return lines("TRACE /ok/"+m+" HTTP/1.1", bound) }),
		request("asterisk", "a request about the server as a whole", func(m string) string {
			return lines("OPTIONS * HTTP/1.1", bound, "X-Mark: "+m)
		}),
		request("method-override", "a header that makes another method of it", func(m string) string {
			return lines("POST /ok/"+m+" HTTP/1.1", bound, "X-HTTP-Method-Override: DELETE", "Content-Length: 0")
		}),
		request("method-override-underscores", "the same in a spelling that programs behind CGI take for it", func(m string) string {
			return lines("POST /ok/"+m+" HTTP/1.1", bound, "X_HTTP_Method_Override: DELETE", "Content-Length: 0")
		}),
		request("method-override-list", "two methods in one such header", func(m string) string {
			return lines("POST /ok/"+m+" HTTP/1.1", bound, "X_Method-Override: POST, DELETE", "Content-Length: 0")
		}),
		request("method-override-query", "a parameter that makes another method of it", func(m string) string {
			return lines("POST /ok/"+m+"?a=b&%5fmethod=delete HTTP/1.1", bound, "Content-Length: 0")
		}),
		request("denied-path", "a path that is denied below one that is allowed", func(m string) string { return get(boundName, "/ok/closed/"+m) }),
		request("denied-path-in-upper-case", "the same in another case, which some servers take for the same", func(m string) string {
			return get(boundName, "/ok/Closed/"+m)
		}),
		request("denied-path-with-a-slash", "a denied path with a slash at its end", func(m string) string { return get(boundName, "/ok/shut/?"+m) }),
		request("upgrade-h2c", "a change to HTTP/2, in which more requests follow unseen", func(m string) string {
			return lines("GET /ok/"+m+" HTTP/1.1", bound, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
		}),
		request("upgrade-tcp", "a change to a protocol that nobody can look into", func(m string) string {
			return lines("GET /ok/"+m+" HTTP/1.1", bound, "Connection: Upgrade", "Upgrade: tcp")
		}),
		request("upgrade-twice", "two protocols to choose from", func(m string) string {
			return lines("GET /ok/"+m+" HTTP/1.1", bound, "Connection: Upgrade", "Upgrade: websocket, h2c")
		}),
		request("upgrade-of-a-post", "a WebSocket that begins with another method", func(m string) string {
			return lines("POST /ok/"+m+" HTTP/1.1", bound, "Connection: Upgrade", "Upgrade: websocket", "Content-Length: 0")
		}),
		request("version-nine", "a request of HTTP/0.9", func(m string) string { return "GET /ok/" + m + "\r\n\r\n" }),
		request("version-two", "a request that says it is of another version", func(m string) string { return lines("GET /ok/"+m+" HTTP/3.7", bound) }),
		request("http2-without-tls", "HTTP/2 from the first byte, without TLS", func(m string) string {
			return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + m
		}),
		request("pipelined", "a forbidden request behind an allowed one on the same connection", func(m string) string {
			return get(boundName, "/ok/first") + get(boundName, "/secret/"+m)
		}),
		request("websocket-beyond", "a WebSocket at a path beyond the bounds", func(m string) string {
			return lines("GET /secret/"+m+" HTTP/1.1", bound, "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
		}),
	}
	return append(list,
		attempt{name: "redirect", tries: "an answer of an allowed host that leads to a forbidden one", in: plain, at: host,
			attack: func(*world) error {
				c := http.Client{Timeout: patience}
				r, err := c.Get("http://" + boundName + "/ok/redirect")
				if err != nil {
					return err
				}
				defer r.Body.Close()
				if r.StatusCode != http.StatusOK {
					return errors.New(r.Status)
				}
				return nil
			}},
		attempt{name: "connect-at-an-open-host", tries: "a tunnel asked for at a host without bounds, which is no proxy", in: plain, at: host,
			attack: func(*world) error {
				c, err := dial(openName, 80)
				if err != nil {
					return broken(err)
				}
				return servedAt(deniedAddr)(talk(c, 2, lines("CONNECT "+deniedName+":80 HTTP/1.1", "Host: "+deniedName+":80"), get(deniedName, "/")))
			},
			control: func(*world) error {
				c, err := dial(deniedName, 80)
				if err != nil {
					return err
				}
				return servedAt(deniedAddr)(talk(c, 1, get(deniedName, "/")))
			}},
		attempt{name: "host-at-an-open-host", tries: "a forbidden host in the header at a host without bounds", in: plain, at: host,
			attack: func(*world) error {
				c, err := dial(openName, 80)
				if err != nil {
					return broken(err)
				}
				return servedAt(deniedAddr)(talk(c, 1, get(deniedName, "/")))
			},
			control: func(*world) error {
				c, err := dial(deniedName, 80)
				if err != nil {
					return err
				}
				return servedAt(deniedAddr)(talk(c, 1, get(deniedName, "/")))
			}},
		attempt{name: "proxy-variables", tries: "the boundary as a proxy, as some programs are told to use one", in: plain, at: host, arrives: true,
			attack: func(w *world) error {
				var errs []error
				for _, port := range []int{3128, 8080, 80, 1080} {
					errs = append(errs, say("198.18.0.1", port, lines("GET http://"+deniedName+"/"+w.Mark+" HTTP/1.1", "Host: "+deniedName)))
				}
				return errors.Join(errs...)
			},
			control: func(w *world) error {
				return say("198.18.0.1", 8080, lines("GET http://"+deniedName+"/"+w.Mark+" HTTP/1.1", "Host: "+deniedName))
			}},
		attempt{name: "long-header", tries: "a head so long that the end of it could be taken for a request", in: plain, at: plain, arrives: true, control: honestly,
			attack: func(w *world) error {
				return say(boundName, 80, "GET /ok/x HTTP/1.1\r\nHost: "+boundName+"\r\nX-Long: "+strings.Repeat("a", 300<<10)+fmt.Sprintf("\r\n\r\nGET /secret/%s HTTP/1.1\r\nHost: %s\r\n\r\n", w.Mark, boundName))
			}})
}

// servedAt returns nil when the server at addr has answered.
func servedAt(addr string) func(text string, err error) error {
	return func(text string, err error) error {
		if strings.Contains(text, " at "+addr) {
			return nil
		}
		return fmt.Errorf("%q, %v", text, err)
	}
}
