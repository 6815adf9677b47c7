package protocol_test

import (
	"net"
	"os"
	"syscall"
	"testing"
)

func unixPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	p, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var cs [2]net.Conn
	for i, fd := range p {
		f := os.NewFile(uintptr(fd), "pair")
		if cs[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { cs[i].Close() })
	}
	return cs[0], cs[1]
}

func filePipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}
