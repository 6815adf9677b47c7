package escape

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long an instrument waits for what should come at once. A
// control has more: where it succeeds, the wait is short.
var patience = 3 * time.Second

var dialer net.Dialer

// dial connects to a name or an address.
func dial(host string, port int) (net.Conn, error) {
	c, err := dialer.Dial("tcp", net.JoinHostPort(host, fmt.Sprint(port)))
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(patience))
	return c, nil
}

// talk writes each part and returns all that comes back until the other side is
// done or has answered want times.
func talk(c net.Conn, want int, parts ...string) (string, error) {
	defer c.Close()
	for _, p := range parts {
		if _, err := io.WriteString(c, p); err != nil {
			return "", err
		}
	}
	var all strings.Builder
	r := bufio.NewReader(c)
	for range want {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return all.String(), err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Fprintf(&all, "%s %s", resp.Status, body)
		if err != nil {
			return all.String(), err
		}
	}
	return all.String(), nil
}

// whole is one answer of HTTP with its header and trailers.
func whole(r io.Reader) (string, error) {
	resp, err := http.ReadResponse(bufio.NewReader(r), nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return fmt.Sprint(resp.Status, resp.Header, string(body), resp.Trailer), err
}

// say connects, writes text and wants an answer of HTTP that is no refusal.
func say(host string, port int, parts ...string) error {
	c, err := dial(host, port)
	if err != nil {
		return err
	}
	return answered(talk(c, 1, parts...))
}

func answered(text string, err error) error {
	if err != nil {
		return err
	}
	if !strings.HasPrefix(text, "200") {
		return errors.New(strings.TrimSpace(text))
	}
	return nil
}

// get is a request for path.
func get(host, path string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
}

func fetch(host string, port int, path string) error { return say(host, port, get(host, path)) }

// secure is dial with TLS for a server name, whatever certificate is shown.
func secure(host string, port int, sni string, protocols ...string) (*tls.Conn, error) {
	c, err := dial(host, port)
	if err != nil {
		return nil, err
	}
	t := tls.Client(c, &tls.Config{ServerName: sni, InsecureSkipVerify: true, NextProtos: protocols})
	if err := t.Handshake(); err != nil {
		c.Close()
		return nil, err
	}
	return t, nil
}

// sayTLS is say within TLS.
func sayTLS(host, sni string, parts ...string) error {
	t, err := secure(host, 443, sni)
	if err != nil {
		return err
	}
	return answered(talk(t, 1, parts...))
}

// send sends one datagram; an answer of the kernel that it was refused is an
// error.
func send(network, to string, payload string, options ...func(fd int) error) error {
	d := net.Dialer{Timeout: patience, Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) {
			for _, o := range options {
				err = errors.Join(err, o(int(fd)))
			}
		}); e != nil {
			return e
		}
		return err
	}}
	c, err := d.Dial(network, to)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := io.WriteString(c, payload); err != nil {
		return err
	}
	// A refusal comes as an ICMP error, at once.
	c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1500)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// ask puts a question to a resolver and returns the raw answer.
func ask(network, server string, question []byte) ([]byte, error) {
	c, err := dialer.Dial(network, server)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if network == "tcp" {
		question = append(binary.BigEndian.AppendUint16(nil, uint16(len(question))), question...)
	}
	if _, err := c.Write(question); err != nil {
		return nil, err
	}
	b := make([]byte, 64<<10)
	if network == "tcp" {
		if _, err := io.ReadFull(c, b[:2]); err != nil {
			return nil, err
		}
		n := int(binary.BigEndian.Uint16(b))
		_, err := io.ReadFull(c, b[:n])
		return b[:n], err
	}
	n, err := c.Read(b)
	return b[:n], err
}

// resolve returns the first address of name in a family.
func resolve(name, network string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	as, err := net.DefaultResolver.LookupNetIP(ctx, network, name+".")
	if err != nil {
		return netip.Addr{}, err
	}
	return as[0].Unmap(), nil
}

// raw sends bytes as an IP packet with a header of its own.
func raw(packet []byte, to netip.Addr) error {
	family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: to.As16()})
	if to.Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Addr: to.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, packet, 0, sa)
}

// ipv4 is a packet of IPv4; the kernel fills in source, length and checksum.
func ipv4(to netip.Addr, proto byte, flags uint16, options, payload []byte) []byte {
	b := make([]byte, 20, 20+len(options)+len(payload))
	b[0] = 0x40 | byte(5+len(options)/4)
	binary.BigEndian.PutUint16(b[4:], 0x4b17)
	binary.BigEndian.PutUint16(b[6:], flags)
	b[8], b[9] = 64, proto
	copy(b[16:], to.AsSlice())
	return append(append(b, options...), payload...)
}

// udp is a datagram without a checksum, which IPv4 allows.
func udp(port uint16, payload string) []byte {
	b := make([]byte, 8, 8+len(payload))
	binary.BigEndian.PutUint16(b, 40000)
	binary.BigEndian.PutUint16(b[2:], port)
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(payload)))
	return append(b, payload...)
}

// udp6 is one with, since IPv6 demands it.
func udp6(from, to netip.Addr, port uint16, payload string) []byte {
	b := udp(port, payload)
	pseudo := append(append(from.AsSlice(), to.AsSlice()...), 0, 0, byte(len(b)>>8), byte(len(b)), 0, 0, 0, unix.IPPROTO_UDP)
	binary.BigEndian.PutUint16(b[6:], checksum(append(pseudo, b...)))
	return b
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		w := uint32(b[i]) << 8
		if i+1 < len(b) {
			w |= uint32(b[i+1])
		}
		sum += w
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// frame sends an Ethernet frame on an interface.
func frame(iface string, to net.HardwareAddr, ethertype uint16, payload []byte) error {
	i, err := net.InterfaceByName(iface)
	if err != nil {
		return err
	}
	swapped := ethertype<<8 | ethertype>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(swapped))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := make([]byte, 14, 14+len(payload))
	copy(b, to)
	copy(b[6:], i.HardwareAddr)
	binary.BigEndian.PutUint16(b[12:], ethertype)
	return unix.Sendto(fd, append(b, payload...), 0, &unix.SockaddrLinklayer{Protocol: swapped, Ifindex: i.Index, Halen: 6})
}

// uplinkInterface is where packets leave by: eth0 in a sandbox, and loopback
// in the control's namespace.
func uplinkInterface() string {
	if _, err := net.InterfaceByName("eth0"); err == nil {
		return "eth0"
	}
	return "lo"
}
