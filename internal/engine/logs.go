package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"iter"
	"os"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/display"
	"github.com/kitbox-dev/kitbox/internal/journal"
	"github.com/kitbox-dev/kitbox/internal/keeper"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// followPause is how often a followed log is looked at again.
const followPause = 100 * time.Millisecond

// PolicyLog implements [sandbox.PolicyLogger]. It reads the files that the
// keeper writes, so that it works on a stopped sandbox and beside a keeper that hangs.
func (b *box) PolicyLog(ctx context.Context, o sandbox.PolicyLogOptions) iter.Seq2[sandbox.PolicyEvent, error] {
	return func(yield func(sandbox.PolicyEvent, error) bool) {
		var wait func() bool
		if o.Follow {
			wait = func() bool {
				if _, err := os.Stat(b.sb.Dir()); err != nil {
					return false // removed
				}
				select {
				case <-ctx.Done():
				case <-time.After(followPause):
				}
				return true
			}
		}
		for d, err := range audit.Read(ctx, b.sb.Path(policyFile), wait) {
			if err != nil {
				yield(sandbox.PolicyEvent{}, durable.Explain(b.sb.Path(policyFile), err))
				return
			}
			if !yield(policyEvent(d), nil) {
				return
			}
		}
	}
}

func policyEvent(d audit.Decision) sandbox.PolicyEvent {
	return sandbox.PolicyEvent{Time: d.Time, Phase: string(d.Phase), Kind: string(d.Kind), Verdict: d.Verdict,
		Allowed: d.Verdict != audit.Deny, Host: d.Host, Port: d.Port, Protocol: d.Protocol, Method: d.Method, Path: d.Path, Dialled: d.Dialled,
		Reason: d.Why, Rule: d.Rule, Source: d.Source, Count: d.Count, Credential: d.Credential}
}

// refusedBound is how many refusals travel with the error of a hook. They are
// for a person, who needs the first.
const refusedBound = 20

// refused is what the boundary has declined so far.
func (b *box) refused(ctx context.Context) (out []sandbox.PolicyEvent) {
	for ev, err := range b.PolicyLog(ctx, sandbox.PolicyLogOptions{}) {
		if err != nil || len(out) == refusedBound {
			break
		}
		if !ev.Allowed {
			out = append(out, ev)
		}
	}
	return out
}

// HookRuns implements [sandbox.HookLogger].
func (b *box) HookRuns(context.Context) ([]sandbox.HookRun, error) {
	runs, err := keeper.HookRuns(b.sb.Dir())
	return runs, durable.Explain(b.sb.Path(keeper.HookLogName), err)
}

// Inspect implements [sandbox.Inspector].
func (b *box) Inspect(ctx context.Context) (*sandbox.Inspection, error) {
	info, err := b.Status(ctx)
	if err != nil {
		return nil, err
	}
	in := &sandbox.Inspection{Info: info, StateDir: b.sb.Dir(), Journal: []json.RawMessage{}}
	p, err := b.plan()
	if err != nil && !errors.Is(err, kiterr.ErrNotFound) {
		return nil, err
	}
	if p != nil && err == nil {
		shown, err := display.Plan(p)
		if err != nil {
			return nil, err
		}
		in.Plan = *shown
	}
	lines, err := durable.Lines(b.sb.Path(journal.Name))
	if err != nil {
		return nil, err
	}
	for _, l := range lines {
		if l = bytes.TrimSpace(l); json.Valid(l) {
			in.Journal = append(in.Journal, json.RawMessage(l))
		}
	}
	for file, to := range map[string]*json.RawMessage{lockFile: &in.Lock, selectionFile: &in.Selection} {
		data, err := os.ReadFile(b.sb.Path(file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, durable.Explain(b.sb.Path(file), err)
		}
		*to = json.RawMessage(bytes.TrimSpace(data))
	}
	return in, nil
}
