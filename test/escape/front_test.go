package escape

// Two names of one front end, which serves by what a request says. One is allowed.
const (
	frontName = "front.test" // GET below /ok
	twinName  = "twin.test"  // no rule
	frontAddr = "93.184.216.50"
)

// fronts are attempts to reach a name by the address of another. Their control
// reaches it from the outside, at that address.
func fronts() []attempt {
	twin := func(w *world) error { return say(frontAddr, 80, get(twinName, "/ok/"+w.Mark)) }
	twinTLS := func(w *world) error { return sayTLS(frontAddr, twinName, get(twinName, "/ok/"+w.Mark)) }
	trick := func(name, tries string, control, attack func(w *world) error) attempt {
		return attempt{name: "front-" + name, tries: tries, in: plain, at: host, arrives: true, attack: attack, control: control}
	}
	return []attempt{
		trick("host", "the other name in the header", twin, func(w *world) error { return say(frontName, 80, get(twinName, "/ok/"+w.Mark)) }),
		trick("host-later", "the same in the second request of a connection", twin, func(w *world) error {
			return say(frontName, 80, get(frontName, "/ok/first")+get(twinName, "/ok/"+w.Mark))
		}),
		trick("absolute-form", "the other name in the target", twin, func(w *world) error {
			return say(frontName, 80, lines("GET http://"+twinName+"/ok/"+w.Mark+" HTTP/1.1", "Host: "+frontName))
		}),
		trick("host-in-tls", "the other name in the header, within TLS for the first", twinTLS, func(w *world) error {
			return sayTLS(frontName, frontName, get(twinName, "/ok/"+w.Mark))
		}),
		trick("server-name", "TLS for the other name", twinTLS, func(w *world) error {
			return sayTLS(frontName, twinName, get(twinName, "/ok/"+w.Mark))
		}),
		trick("no-server-name", "TLS for no name, and the other in the header", twinTLS, func(w *world) error {
			return sayTLS(frontName, "", get(twinName, "/ok/"+w.Mark))
		}),
		trick("h2-authority", "the other name as the authority of HTTP/2", twinTLS, func(w *world) error {
			return http2Say(frontName, "", http2Request("GET", twinName, "/ok/"+w.Mark))
		}),
		trick("h2-authority-later", "the same in the second request of a connection", twinTLS, func(w *world) error {
			return http2Say(frontName, "", http2Request("GET", frontName, "/ok/first"), http2Request("GET", twinName, "/ok/"+w.Mark))
		}),
		trick("h2-host", "the other name beside the authority", twinTLS, func(w *world) error {
			return http2Say(frontName, "", http2Request("GET", frontName, "/ok/x", field{"host", w.Mark + "." + twinName}))
		}),
	}
}
