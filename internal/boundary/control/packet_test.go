package control

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/ownthread"
)

func TestQuietenUndoesWhatTheHostHasTurnedOn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, or root of a user namespace; TestRootless covers the latter")
	}
	err := ownthread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		for _, s := range sysctls {
			other := "1"
			if s.value == "1" {
				other = "0"
			}
			if err := os.WriteFile(s.path, []byte(other), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		if err := quieten(); err != nil {
			return err
		}
		for _, s := range sysctls {
			if _, err := os.Stat(s.path); err == nil && !sysctlIs(s.path, s.value) {
				t.Errorf("%s is not %s", s.path, s.value)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestParsePacket(t *testing.T) {
	v4 := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 2, 8, 8, 8, 8, 0x10, 0, 0, 53}
	v6 := append([]byte{0x60, 0, 0, 0, 0, 8, 17, 64}, append(make([]byte, 16), netip.MustParseAddr("2001:db8::1").AsSlice()...)...)
	v6 = append(v6, 0x10, 0, 0x01, 0xbb)
	edit := func(b []byte, at int, v byte) []byte { b = append([]byte(nil), b...); b[at] = v; return b }
	for _, tt := range []struct {
		packet   []byte
		protocol string
		to       string
	}{
		{v4, "udp", "8.8.8.8:53"},
		{v6, "udp", "[2001:db8::1]:443"},
		{edit(v4, 9, 1), "icmp", "8.8.8.8:0"},
		{edit(v4, 9, 47), "ip protocol 47", "8.8.8.8:0"},
		{edit(v4, 9, 132), "sctp", "8.8.8.8:53"},
		{edit(v6, 6, 58), "icmpv6", "[2001:db8::1]:0"},
		{edit(v4, 7, 1), "udp", "8.8.8.8:0"}, // a later fragment has no ports
		{v4[:20], "udp", "8.8.8.8:0"},
		{v4[:19], "unknown", "invalid AddrPort"},
		{v6[:39], "unknown", "invalid AddrPort"},
		{nil, "unknown", "invalid AddrPort"},
	} {
		if p, to := parsePacket(tt.packet); p != tt.protocol || to.String() != tt.to {
			t.Errorf("% x: %s to %s, want %s to %s", tt.packet, p, to, tt.protocol, tt.to)
		}
	}
}

func FuzzParsePacket(f *testing.F) {
	f.Add([]byte{0x4f, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, 0, 2, 8, 8, 8, 8, 0x10, 0, 0, 53})
	f.Add(append([]byte{0x60}, make([]byte, 60)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, _ := parsePacket(b); p == "" {
			t.Fatal("no protocol")
		}
	})
}
