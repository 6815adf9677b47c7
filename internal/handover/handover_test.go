package handover_test

import (
	"errors"
	"net"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/handover"
)

func TestAConnectionIsAcceptedOnceAndNoneAfterTheEnd(t *testing.T) {
	l := handover.New()
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	put := make(chan bool)
	go func() { put <- l.Put(ours) }()
	if got, err := l.Accept(); got != ours || err != nil || !<-put {
		t.Errorf("accepted %v, %v", got, err)
	}
	l.Close()
	l.Close()
	if l.Put(ours) {
		t.Error("taken after the end")
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept = %v", err)
	}
}
