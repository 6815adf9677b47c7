package escape

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// target is where crafted packets are to go.
var target, target6 = netip.MustParseAddr(publicAddr), netip.MustParseAddr(public6)

// on returns an attempt whose control is the same thing done on the host, where
// everything answers.
func on(in place, name, tries string, attack func(w *world) error) attempt {
	return attempt{name: name, tries: tries, in: in, attack: attack, at: host, arrives: true}
}

func at(port int) string { return net.JoinHostPort(publicAddr, fmt.Sprint(port)) }

// packets are attempts below and beside TCP.
func packets() []attempt {
	return []attempt{
		on(plain, "udp", "a datagram to a public address", func(w *world) error {
			return send("udp4", at(udpPort), w.Mark)
		}),
		on(plain, "udp6", "the same by IPv6", func(w *world) error {
			return send("udp6", net.JoinHostPort(public6, fmt.Sprint(udpPort)), w.Mark)
		}),
		on(plain, "udp-loopback-of-the-host", "a datagram to the boundary's own address", func(w *world) error {
			return send("udp4", fmt.Sprintf("198.18.0.1:%d", udpPort), w.Mark)
		}),
		on(plain, "quic", "QUIC's port of a public address", func(w *world) error { return send("udp4", at(443), w.Mark) }),
		{name: "quic-to-an-allowed-name", tries: "QUIC's port of an allowed name, which only TCP is allowed to",
			in: plain, at: host, arrives: true,
			attack: func(w *world) error { return send("udp4", openName+":443", w.Mark) }},
		on(plain, "ntp", "the time service", func(w *world) error { return send("udp4", at(123), w.Mark) }),
		{name: "broadcast", tries: "a broadcast, as DHCP begins with", in: plain, at: host, arrives: true,
			attack: func(w *world) error {
				return send("udp4", "255.255.255.255:67", w.Mark, setsockopt(unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
			},
			// Where every address is the host's own, none is everybody's.
			control: func(w *world) error { return send("udp4", at(67), w.Mark) }},
		{name: "multicast", tries: "the address of multicast DNS", in: plain, at: host, arrives: true,
			attack: func(w *world) error { return send("udp4", "224.0.0.251:5353", w.Mark) },
			// Nobody has joined the group out there.
			control: func(w *world) error { return send("udp4", at(5353), w.Mark) }},
		on(plain, "ping-socket", "an echo request of a socket that needs no privilege", func(w *world) error {
			return echo(unix.SOCK_DGRAM, w.Mark)
		}),
		on(plain, "icmp", "an echo request with data", func(w *world) error { return echo(unix.SOCK_RAW, w.Mark) }),
		on(strong, "icmp-strong", "the same with every capability", func(w *world) error { return echo(unix.SOCK_RAW, w.Mark) }),
		on(strong, "icmp6", "an echo request by IPv6", func(w *world) error {
			fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Sendto(fd, append([]byte{128, 0, 0, 0, 0, 1, 0, 1}, w.Mark...), 0, &unix.SockaddrInet6{Addr: target6.As16()})
		}),
		on(strong, "ip-in-ip", "a packet of IP within one of IP", func(w *world) error {
			inner := ipv4(target, unix.IPPROTO_UDP, 0, nil, udp(udpPort, w.Mark))
			return raw(ipv4(target, unix.IPPROTO_IPIP, 0, nil, inner), target)
		}),
		on(strong, "gre", "a packet within one of GRE", func(w *world) error {
			return raw(ipv4(target, unix.IPPROTO_GRE, 0, nil, append([]byte{0, 0, 8, 0}, w.Mark...)), target)
		}),
		on(strong, "sctp", "a packet of SCTP", func(w *world) error {
			return raw(ipv4(target, unix.IPPROTO_SCTP, 0, nil, append(make([]byte, 12), w.Mark...)), target)
		}),
		on(strong, "udplite", "a packet of UDP-Lite", func(w *world) error {
			return raw(ipv4(target, unix.IPPROTO_UDPLITE, 0, nil, udp(udpPort, w.Mark)), target)
		}),
		on(strong, "unknown-protocol", "a packet of a protocol that nobody has", func(w *world) error {
			return raw(ipv4(target, 253, 0, nil, []byte(w.Mark)), target)
		}),
		on(strong, "unknown-protocol-6", "the same by IPv6", func(w *world) error {
			return raw6(253, []byte(w.Mark))
		}),
		on(strong, "raw-udp", "a datagram with a header of one's own", func(w *world) error {
			return raw(ipv4(target, unix.IPPROTO_UDP, 0, nil, udp(udpPort, w.Mark)), target)
		}),
		on(strong, "fragments", "a datagram in fragments, the first too short for its ports", func(w *world) error {
			whole := udp(udpPort, w.Mark+"-padding-padding")
			if err := raw(ipv4(target, unix.IPPROTO_UDP, 0x2000, nil, whole[:8]), target); err != nil {
				return err
			}
			return raw(ipv4(target, unix.IPPROTO_UDP, 1, nil, whole[8:]), target)
		}),
		on(strong, "late-fragment-to-the-resolver", "fragments that begin as a question to the boundary's resolver and go on to another port",
			func(w *world) error {
				to := target
				if uplinkInterface() == "eth0" {
					to = netip.MustParseAddr("198.18.0.1")
				}
				whole := udp(udpPort, w.Mark+"-padding-padding")
				if err := raw(ipv4(to, unix.IPPROTO_UDP, 1, nil, whole[8:]), to); err != nil {
					return err
				}
				return raw(ipv4(to, unix.IPPROTO_UDP, 0x2000, nil, whole[:8]), to)
			}),
		on(strong, "source-route", "a packet with a route of its own in its options", func(w *world) error {
			via, options := target, []byte{131, 7, 8, 0, 0, 0, 0, 0} // used up
			if uplinkInterface() == "eth0" {
				via = netip.MustParseAddr("198.18.0.1")
				options[2] = 4
			}
			copy(options[3:], target.AsSlice())
			return raw(ipv4(via, unix.IPPROTO_UDP, 0, options, udp(udpPort, w.Mark)), via)
		}),
		on(strong, "extension-headers", "a datagram of IPv6 behind options for the destination", func(w *world) error {
			return raw6(unix.IPPROTO_DSTOPTS, append([]byte{unix.IPPROTO_UDP, 0, 1, 4, 0, 0, 0, 0}, udp6(own6(), target6, udpPort, w.Mark)...))
		}),
		on(strong, "fragment-6", "an atomic fragment of IPv6", func(w *world) error {
			return raw6(unix.IPPROTO_FRAGMENT, append([]byte{unix.IPPROTO_UDP, 0, 0, 0, 0, 0, 0, 7}, udp6(own6(), target6, udpPort, w.Mark)...))
		}),
		on(strong, "frame", "an Ethernet frame of one's own to the boundary's end of the link", func(w *world) error {
			return frame(uplinkInterface(), gatewayMAC(), unix.ETH_P_IP, finish(ipv4(target, unix.IPPROTO_UDP, 0, nil, udp(udpPort, w.Mark)), "198.18.0.2"))
		}),
		on(strong, "spoofed-loopback-frame", "a frame that says it comes from the boundary's loopback, to a service on it", func(w *world) error {
			return frame(uplinkInterface(), gatewayMAC(), unix.ETH_P_IP, finish(ipv4(netip.MustParseAddr("127.0.0.1"), unix.IPPROTO_UDP, 0, nil, udp(udpPort, w.Mark)), "127.0.0.1"))
		}),
		on(strong, "spoofed-boundary-frame", "a frame that says it comes from the boundary itself", func(w *world) error {
			return frame(uplinkInterface(), gatewayMAC(), unix.ETH_P_IP, finish(ipv4(target, unix.IPPROTO_UDP, 0, nil, udp(udpPort, w.Mark)), "198.18.0.1"))
		}),
		{name: "vlan-frame", tries: "a frame with the tag of a VLAN", in: strong, at: host, arrives: true,
			attack: func(w *world) error {
				return frame(uplinkInterface(), gatewayMAC(), unix.ETH_P_8021Q, append([]byte{0, 5, 8, 0}, finish(ipv4(target, unix.IPPROTO_UDP, 0, nil, udp(udpPort, w.Mark)), "198.18.0.2")...))
			},
			control: func(w *world) error {
				return frame("lo", gatewayMAC(), unix.ETH_P_IP, finish(ipv4(target, unix.IPPROTO_UDP, 0, nil, udp(udpPort, w.Mark)), "198.18.0.2"))
			}},
		{name: "sniff", tries: "listening to what other sandboxes send", in: strong, at: strong,
			attack:  func(w *world) error { return sniff("the neighbour says", func() error { return nil }) },
			control: func(w *world) error { return sniff(w.Mark, func() error { return fetch(openName, 80, "/ok/"+w.Mark) }) }},
		{name: "vsock", tries: "a virtual machine's way to its host", in: plain, at: host, attack: func(w *world) error {
			fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if errors.Is(err, unix.EAFNOSUPPORT) {
				return fmt.Errorf("%w: %w", errMissing, err)
			}
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}},
		{name: "tun", tries: "an interface of one's own making", in: plain, at: host, attack: func(*world) error {
			return writable("/dev/net/tun")
		}},
	}
}

func setsockopt(level, option, value int) func(int) error {
	return func(fd int) error { return unix.SetsockoptInt(fd, level, option, value) }
}

func echo(kind int, mark string) error {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	if kind == unix.SOCK_DGRAM && errors.Is(err, unix.EACCES) && uplinkInterface() == "lo" {
		// The host lets nobody have one by default; its instrument is a raw one.
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := append([]byte{8, 0, 0, 0, 0, 1, 0, 1}, mark...)
	binary.BigEndian.PutUint16(b[2:], checksum(b))
	return unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: target.As4()})
}

// own6 is the address that packets of IPv6 leave from.
func own6() netip.Addr {
	c, err := net.Dial("udp6", net.JoinHostPort(public6, "1"))
	if err != nil {
		return netip.IPv6Loopback()
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr()
}

func raw6(next byte, payload []byte) error {
	b := make([]byte, 40, 40+len(payload))
	b[0], b[6], b[7] = 0x60, next, 64
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	copy(b[8:], own6().AsSlice())
	copy(b[24:], target6.AsSlice())
	return raw(append(b, payload...), target6)
}

// finish fills in what the kernel does not for a frame.
func finish(p []byte, from string) []byte {
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	copy(p[12:], netip.MustParseAddr(from).AsSlice())
	binary.BigEndian.PutUint16(p[10:], 0)
	binary.BigEndian.PutUint16(p[10:], checksum(p[:int(p[0]&15)*4]))
	return p
}

// gatewayMAC is that of the boundary's end of the link; loopback's is zero.
func gatewayMAC() net.HardwareAddr {
	if uplinkInterface() == "lo" {
		return make(net.HardwareAddr, 6)
	}
	_ = send("udp4", "198.18.0.1:9", "so that the kernel asks")
	arp, err := os.ReadFile("/proc/net/arp")
	if err == nil {
		var ip, hw, flags, mac string
		for line := range splitLines(arp) {
			if n, _ := fmt.Sscan(line, &ip, &hw, &flags, &mac); n == 4 && ip == "198.18.0.1" {
				if m, err := net.ParseMAC(mac); err == nil {
					return m
				}
			}
		}
	}
	return net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
}

// sniff returns nil when a frame with text passes by while f runs.
func sniff(text string, f func() error) error {
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all)
	if err != nil {
		return broken(err)
	}
	packets := os.NewFile(uintptr(fd), "packets")
	defer packets.Close()
	if err := f(); err != nil {
		return broken(err)
	}
	if err := packets.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		return broken(err)
	}
	b := make([]byte, 64<<10)
	for {
		n, err := packets.Read(b)
		if err != nil {
			return fmt.Errorf("no frame says %q: %w", text, err)
		}
		if contains(b[:n], text) {
			return nil
		}
	}
}
