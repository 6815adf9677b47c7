package escape

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A remnant is something that was made while the install phase was open.
type remnant struct {
	Before, After string // how its use ended; empty is success
	Done          bool
}

const (
	lingersFile = "/tmp/lingers"
	overFile    = "/tmp/over"
	reportFile  = "/tmp/report"
)

// linger runs from the install hook on. It makes connections, waits until it is
// told that the phase is over, and uses them again.
func linger() int {
	type use struct {
		before error
		after  func(mark string) error
	}
	uses := map[string]use{}
	// A connection that stays open between two requests.
	keep := func(name, host, path string) {
		c, err := dial(host, 80)
		if err == nil {
			_, err = exchange(c, get(host, path))
		}
		uses[name] = use{err, func(mark string) error {
			c.SetDeadline(time.Now().Add(patience))
			_, err := exchange(c, get(host, path+mark))
			return err
		}}
	}
	keep("open", setupName, "/")
	keep("bound", setupBound, "/ok/")
	// A request whose body goes on.
	half, err := dial(setupBound, 80)
	if err == nil {
		_, err = half.Write([]byte("POST /ok/upload HTTP/1.1\r\nHost: " + setupBound + "\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"))
	}
	uses["upload"] = use{err, func(mark string) error {
		half.SetDeadline(time.Now().Add(patience))
		_, err := exchange(half, fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(mark), mark))
		return err
	}}
	// Half of a head, and half of the first words of TLS.
	begun, err := dial(setupBound, 80)
	if err == nil {
		_, err = begun.Write([]byte("GET /ok/"))
	}
	uses["half-head"] = use{err, func(mark string) error {
		begun.SetDeadline(time.Now().Add(patience))
		_, err := exchange(begun, mark+" HTTP/1.1\r\nHost: "+setupBound+"\r\n\r\n")
		return err
	}}
	words, err := firstWords(setupName)
	if err != nil {
		return 1
	}
	greeting, err := dial(setupName, 443)
	if err == nil {
		_, err = greeting.Write(words[:len(words)/2])
	}
	uses["half-hello"] = use{err, func(string) error {
		if _, err := greeting.Write(words[len(words)/2:]); err != nil {
			return err
		}
		return greeted(greeting)
	}}
	// A connection of HTTP/2, for another stream.
	more, err := streams(setupBound)
	if err == nil {
		err = more("/ok/x")
	}
	uses["stream"] = use{err, func(mark string) error { return more("/ok/" + mark) }}
	// A connection on which nothing has been said yet.
	silent, err := dial(setupName, 80)
	uses["silent"] = use{err, func(mark string) error {
		silent.SetDeadline(time.Now().Add(patience))
		_, err := exchange(silent, get(setupName, "/"+mark))
		return err
	}}
	// An address that was given out then.
	addr, err := resolve(setupName, "ip4")
	uses["address"] = use{err, func(mark string) error { return fetch(addr.String(), 80, "/"+mark) }}
	uses["name"] = use{fetch(setupName, 80, "/"), func(mark string) error { return fetch(setupName, 80, "/"+mark) }}
	secretUse, secretErr := setupSecret()
	uses["secret"] = use{secretErr, secretUse}

	if err := os.WriteFile(lingersFile, nil, 0o600); err != nil {
		return 1
	}
	for {
		mark, err := os.ReadFile(overFile)
		if err == nil && len(mark) > 0 {
			report := map[string]remnant{}
			for name, u := range uses {
				r := remnant{Done: true}
				if u.before != nil {
					r.Before = u.before.Error()
				} else if err := u.after(strings.ReplaceAll(string(mark), "NAME", name)); err != nil {
					r.After = err.Error()
				}
				report[name] = r
			}
			b, err := json.Marshal(report)
			if err == nil {
				err = os.WriteFile(reportFile+"-", b, 0o600)
			}
			if err == nil {
				err = os.Rename(reportFile+"-", reportFile)
			}
			if err != nil {
				return 1
			}
			return 0
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// streams makes one connection of HTTP/2 to host, for requests one after another.
func streams(host string) (ask func(path string) error, err error) {
	tr := &http.Transport{TLSClientConfig: insecure(), Protocols: new(http.Protocols), DialContext: dialer.DialContext}
	tr.Protocols.SetHTTP2(true)
	c, err := tr.NewClientConn(context.Background(), "https", host+":443")
	return func(path string) error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+path, http.NoBody)
		if err != nil {
			return broken(err)
		}
		resp, err := c.RoundTrip(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return ended(fmt.Sprint(resp.StatusCode))
	}, err
}

// exchange is one request and its answer on a connection that stays open.
func exchange(c net.Conn, text string) (string, error) {
	if c == nil {
		return "", errors.New("no connection")
	}
	if _, err := c.Write([]byte(text)); err != nil {
		return "", err
	}
	b := make([]byte, 4096)
	n, err := c.Read(b)
	if err != nil {
		return "", err
	}
	return answerOf(string(b[:n]))
}

func answerOf(s string) (string, error) {
	if !strings.HasPrefix(s, "HTTP/1.1 200") {
		line, _, _ := strings.Cut(s, "\r\n")
		return s, errors.New(line)
	}
	return s, nil
}

// remains asks the process that the install hook has left how its use of one
// thing ended.
func remains(name string) func(w *world) (remnant, error) {
	return func(w *world) (remnant, error) {
		if _, err := os.Stat(lingersFile); err != nil {
			return remnant{}, broken(err)
		}
		f, err := os.OpenFile(overFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			_, err = f.WriteString("attack-phase-NAME-x")
			err = errors.Join(err, f.Close())
		} else if errors.Is(err, os.ErrExist) {
			err = nil
		}
		if err != nil {
			return remnant{}, broken(err)
		}
		for end := time.Now().Add(bound - 5*time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			b, err := os.ReadFile(reportFile)
			if err != nil {
				continue
			}
			var report map[string]remnant
			if err := json.Unmarshal(b, &report); err != nil {
				return remnant{}, broken(err)
			}
			if r := report[name]; r.Done {
				return r, nil
			}
			return remnant{}, broken(errors.New("it has not been tried"))
		}
		return remnant{}, broken(errors.New("the process that the hook left does not answer"))
	}
}

// phases are attempts to use in the runtime phase what was open at install. The
// control is the use of the same thing while the phase was open.
func phases() []attempt {
	left := func(name, tries string) attempt {
		report := remains(name)
		return attempt{name: "phase-" + name, tries: tries, in: plain, at: plain,
			attack: func(w *world) error {
				r, err := report(w)
				if err == nil && r.After != "" {
					err = errors.New(r.After)
				}
				return err
			},
			control: func(w *world) error {
				r, err := report(w)
				if err == nil && r.Before != "" {
					err = errors.New(r.Before)
				}
				return err
			}}
	}
	return []attempt{
		left("open", "a connection of the install phase that was kept open"),
		left("bound", "one whose requests are looked into"),
		left("upload", "a request of the install phase whose body goes on"),
		left("half-head", "a request of the install phase that is said to its end later"),
		left("half-hello", "a handshake of the install phase, likewise"),
		left("stream", "one more stream of a connection of the install phase"),
		left("silent", "a connection of the install phase on which nothing was said yet"),
		left("address", "an address that was given out in the install phase"),
		{name: "phase-secret", tries: "what stands for a secret of the install phase, on a connection of then", in: plain, at: plain, arrives: true,
			attack: func(w *world) error {
				r, err := remains("secret")(w)
				if err == nil && r.Before != "" {
					err = broken(errors.New(r.Before))
				}
				return err
			},
			// That the secret was put in then has been seen outside.
			control: func(w *world) error { _, err := remains("secret")(w); return err }},
		left("name", "a name that was allowed in the install phase"),
	}
}

// findSocket returns nil when a socket with this name can be connected to.
func findSocket(name string) error {
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return broken(err)
	}
	for line := range splitLines(b) {
		f := strings.Fields(line)
		if len(f) == 8 && strings.HasSuffix(f[7], name) {
			return dialUnix(f[7])
		}
	}
	return fmt.Errorf("no socket of that name is known here")
}

func listenUnix(path string) (func(), error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	_ = os.Remove(path)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	if err := unix.Listen(fd, 1); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return func() { unix.Close(fd); os.Remove(path) }, nil
}
