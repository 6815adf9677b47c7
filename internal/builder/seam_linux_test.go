package builder

import (
	"context"
	"maps"

	"github.com/moby/buildkit/client"
	"github.com/opencontainers/go-digest"
)

// SolveBy builds r by a frontend that the builder runs, instead of by one in
// this process, as other clients of BuildKit do. What the frontend says in the
// way of warnings comes back too. It is for tests of other packages.
func SolveBy(ctx context.Context, r Request, frontend string, attrs map[string]string) (digest.Digest, []Warning, error) {
	return solveBy(ctx, r, frontend, attrs, "")
}

// PushBy is SolveBy, into the registry that ref names.
func PushBy(ctx context.Context, r Request, frontend string, attrs map[string]string, ref string) (digest.Digest, error) {
	d, _, err := solveBy(ctx, r, frontend, attrs, ref)
	return d, err
}

func solveBy(ctx context.Context, r Request, frontend string, attrs map[string]string, ref string) (digest.Digest, []Warning, error) {
	if err := r.complete(); err != nil {
		return "", nil, err
	}
	c, err := r.connect(ctx)
	if err != nil {
		return "", nil, err
	}
	defer c.Close()
	land, err := newLanding(r.Layout, true)
	if err != nil {
		return "", nil, err
	}
	defer land.Close()
	opt, err := r.solveOpt(land)
	if err != nil {
		return "", nil, err
	}
	if ref != "" {
		opt.Exports = []client.ExportEntry{{Type: client.ExporterImage, Attrs: map[string]string{"name": ref, "push": "true"}}}
	}
	opt.Frontend = frontend
	maps.Copy(opt.FrontendAttrs, attrs)
	maps.DeleteFunc(opt.FrontendAttrs, func(k, v string) bool { return k == "platform" && v == "" })
	obs := newObserver()
	status := make(chan *client.SolveStatus)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := range status {
			obs.note(s)
		}
	}()
	resp, err := c.Solve(ctx, nil, opt, status)
	<-read
	if err != nil {
		return "", obs.warnings(), err
	}
	desc, err := exported(resp.ExporterResponse)
	if err != nil {
		return "", obs.warnings(), err
	}
	if ref == "" {
		_, err = land.publish(ctx, desc)
	}
	return desc.Digest, obs.warnings(), err
}
