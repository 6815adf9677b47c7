package escape

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
)

// victims are servers that read HTTP in the careless ways that smuggling lives
// on. What they take for the head of a request is recorded; bodies are not.
func (o *outside) victims(t *testing.T) {
	for addr, chunked := range map[string]bool{clAddr: false, teAddr: true} {
		l := listen(t, net.JoinHostPort(addr, "80"))
		go o.serveVictims(l, chunked)
		secure := listen(t, net.JoinHostPort(addr, "443"))
		go o.serveVictims(tls.NewListener(secure, &tls.Config{Certificates: []tls.Certificate{o.certificate}}), chunked)
	}
}

func (o *outside) serveVictims(l net.Listener, chunked bool) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			r := bufio.NewReader(c)
			for o.victim(c, r, chunked) {
			}
		}()
	}
}

// victim reads one request and reports whether there may be another.
func (o *outside) victim(c net.Conn, r *bufio.Reader, chunked bool) bool {
	line, err := r.ReadString('\n')
	if err != nil {
		return false
	}
	if line = strings.TrimRight(line, "\r\n"); line == "" {
		return true // as lenient servers do between requests
	}
	head := []string{line}
	length, stated, chunks := 0, false, false
	for {
		h, err := r.ReadString('\n')
		if err != nil {
			return false
		}
		if h = strings.TrimRight(h, "\r\n"); h == "" {
			break
		}
		head = append(head, h)
		name, value, _ := strings.Cut(h, ":")
		switch strings.ToLower(strings.Trim(name, " \t\v\r\x00_")) {
		case "content-length":
			stated = true
			if n, err := strconv.Atoi(strings.Trim(value, " \t+")); err == nil {
				length = n
			}
		case "transfer-encoding":
			chunks = chunks || strings.Contains(strings.ToLower(value), "chunked")
		default:
			// A folded line that continues the one above.
			if strings.HasPrefix(h, " ") || strings.HasPrefix(h, "\t") {
				chunks = chunks || strings.Contains(strings.ToLower(h), "chunked")
			}
		}
	}
	o.record("in the head of a request to a careless server: "+line, []byte(strings.Join(head, "\n")))
	// Where both are there, each kind believes the other one.
	if chunks && (chunked || !stated) {
		for {
			size, err := r.ReadString('\n')
			if err != nil {
				return false
			}
			size, _, _ = strings.Cut(strings.TrimSpace(size), ";")
			n := uint64(0)
			for _, digit := range size { // too large a number wraps, as it did in real servers
				d := strings.IndexRune("0123456789abcdef", digit)
				if d < 0 {
					return false
				}
				n = n<<4 | uint64(d)
			}
			if n > 1<<20 {
				return false
			}
			if _, err := io.CopyN(io.Discard, r, int64(n)+2); err != nil {
				return false
			}
			if n == 0 {
				break
			}
		}
	} else if _, err := io.CopyN(io.Discard, r, int64(length)); err != nil {
		return false
	}
	_, err = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nvictim\n")
	return err == nil
}
