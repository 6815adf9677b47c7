package escape

import (
	"fmt"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// datagrams records UDP on the ports that attempts use.
func (o *outside) datagrams(t *testing.T) {
	for _, port := range []int{udpPort, grantedUDP, loopPort, 443, 67, 5353, 123} {
		pc, err := net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { pc.Close() })
		go func() {
			b := make([]byte, 64<<10)
			for {
				n, _, err := pc.ReadFrom(b)
				if err != nil {
					return
				}
				o.record(fmt.Sprintf("as a datagram to port %d", port), b[:n])
			}
		}()
	}
	// Whatever else is in a packet of IP.
	for _, p := range []struct{ family, proto int }{
		{unix.AF_INET, unix.IPPROTO_ICMP}, {unix.AF_INET, unix.IPPROTO_IPIP}, {unix.AF_INET, unix.IPPROTO_GRE},
		{unix.AF_INET, unix.IPPROTO_SCTP}, {unix.AF_INET, unix.IPPROTO_UDPLITE}, {unix.AF_INET, 253},
		{unix.AF_INET6, unix.IPPROTO_ICMPV6}, {unix.AF_INET6, 253},
	} {
		fd, err := unix.Socket(p.family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, p.proto)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "raw")
		t.Cleanup(func() { f.Close() })
		go func() {
			b := make([]byte, 64<<10)
			for {
				n, err := f.Read(b)
				if err != nil {
					return
				}
				o.record(fmt.Sprintf("in a packet of protocol %d", p.proto), b[:n])
			}
		}()
	}
}

// others are things of a host that have no address of the internet.
func (o *outside) others(t *testing.T) {
	l, err := net.Listen("unix", o.abstract)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
	o.segment = id
}
