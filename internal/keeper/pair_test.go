package keeper

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// packetPair is a connection like the one between a creator and its keeper.
func packetPair(t *testing.T) (ours, theirs *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var cs [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		cs[i] = c.(*net.UnixConn)
	}
	t.Cleanup(func() { cs[0].Close() })
	return cs[0], cs[1]
}
