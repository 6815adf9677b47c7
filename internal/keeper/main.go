package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/child"
	"github.com/kitbox-dev/kitbox/internal/keeper/link"
)

// Main is the whole life of a keeper process: it waits for the word of its
// creator, asks open for the sandbox in the directory it was given, and serves
// it. args are the process's arguments with the name.
func Main(args []string, open func(dir string) (*Keeper, error)) (exitCode int) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if len(args) == 2 {
		log = slog.New(slog.NewTextHandler(&ownLog{dir: args[1], out: []*os.File{os.Stderr, os.Stdout}}, nil))
	}
	if len(args) != 2 || !filepath.IsAbs(args[1]) {
		log.Error("usage: " + link.ProcessName + " DIRECTORY")
		return 1
	}
	if err := serve(args[1], open, log); err != nil && !errors.Is(err, io.EOF) {
		log.Error("ended", "err", err)
		return 1
	}
	return 0
}

func serve(dir string, open func(dir string) (*Keeper, error), log *slog.Logger) error {
	// A terminal's signals do not get here, since this is a session of its
	// own; a service manager's TERM does.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE)

	// Nothing else was meant for it: a lock, a pipe or a file system of whoever
	// called kitbox is not to be held for as long as the sandbox runs.
	if err := child.CloseInherited(link.HeldFD + 1); err != nil {
		return err
	}
	// The rest is for this process alone.
	_ = unix.CloseRange(link.ListenerFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)

	l, err := inherited[*net.UnixListener](link.ListenerFD, func(f *os.File) (any, error) {
		// The credentials a caller sees are those of whoever called listen
		// last, and Kill needs ours.
		if err := unix.Listen(int(f.Fd()), unix.SOMAXCONN); err != nil {
			return nil, err
		}
		return net.FileListener(f)
	})
	if err != nil {
		return fmt.Errorf("listener: %w", err)
	}
	l.SetUnlinkOnClose(false)
	creator, err := inherited[*net.UnixConn](link.CreatorFD, func(f *os.File) (any, error) { return net.FileConn(f) })
	if err != nil {
		return fmt.Errorf("creator: %w", err)
	}

	var b link.BootRequest
	if _, err := link.Receive(creator, &b, maxRequest); err != nil {
		return err // the creator has ended, or does not need us after all
	}
	k, err := open(dir)
	if err != nil {
		_ = link.Send(creator, link.Reply{Error: link.Failed(err)}, nil)
		return err
	}
	k.Create, k.Volatile, k.Log = b.Create, b.Volatile, log
	go slim(k)
	go func() {
		select {
		case <-ctx.Done():
			k.Shutdown(killGrace)
		case <-k.Ended():
		}
	}()
	return k.Serve(l, creator)
}

// inherited turns a descriptor that this process was started with into what
// make makes of it.
func inherited[T any](fd uintptr, make func(*os.File) (any, error)) (T, error) {
	var none T
	f := os.NewFile(fd, "inherited")
	if f == nil {
		return none, errors.New("not inherited")
	}
	defer f.Close()
	v, err := make(f)
	if err != nil {
		return none, err
	}
	t, ok := v.(T)
	if !ok {
		return none, fmt.Errorf("a %T was inherited", v)
	}
	return t, nil
}
