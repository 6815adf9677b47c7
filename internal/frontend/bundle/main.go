// Command bundle makes the image that a "# syntax=docker/sandbox-kit:3" line
// names, out of kit-frontend programs: one layer that holds the program and
// nothing else. It needs no builder, no network and no clock, so that the same
// programs give the same digest anywhere. `make frontend-image` runs it.
//
// The image is written to the OCI layout "images" below the directory it is
// given, and pushed from there if a reference is named.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/kitbox-dev/kitbox/fetch"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bundle:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("bundle", flag.ContinueOnError)
	dir := f.String("dir", "", "`directory` to write below; the OCI layout is its \"images\"")
	tag := f.String("tag", "kitbox.local/sandbox-kit:3", "`name` of the image in the layout")
	push := f.String("push", "", "`reference` to push the image to; empty: nowhere")
	s := stamp{}
	f.StringVar(&s.version, "version", "dev", "version to state on the image")
	f.StringVar(&s.revision, "revision", "", "revision of the source to state on the image")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *dir == "" || f.NArg() == 0 {
		return errors.New("usage: bundle --dir DIR [--push REF] OS/ARCH=PROGRAM…")
	}
	var ps []program
	for _, a := range f.Args() {
		p, err := readProgram(a)
		if err != nil {
			return err
		}
		ps = append(ps, p)
	}
	desc, err := write(ctx, *dir, *tag, ps, s)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, desc.Digest)
	if *push == "" {
		return nil
	}
	fetcher := &fetch.Fetcher{Home: *dir, Progress: os.Stderr}
	if _, err := fetcher.Push(ctx, *tag, *push); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s@%s\n", strings.TrimSuffix(*push, "@"+desc.Digest.String()), desc.Digest)
	return nil
}
