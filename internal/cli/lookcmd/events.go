package lookcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kitbox-dev/kitbox/internal/cli/argument"
	"github.com/kitbox-dev/kitbox/internal/cli/option"
	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/internal/cli/summary"
	"github.com/kitbox-dev/kitbox/internal/cli/world"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// An event is one thing that happened to a sandbox.
type event struct {
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"` // phase, hook or refused
	Text   string    `json:"text"`
	Reason string    `json:"reason,omitzero"`
}

// Events makes "kitbox events".
func Events(e *world.Env) *cobra.Command {
	var asJSON, follow bool
	cmd := &cobra.Command{
		Use:   "events NAME",
		Short: "Show what happened to a sandbox, in order",
		Long: `Shows the phases of a sandbox's life with the reasons of its stops, the runs of
its hooks, and what its boundary refused. "logs" shows what hooks printed and
"policy log" every decision. With --follow it goes on until it is interrupted or
the sandbox is removed; --json prints one document a line then.`,
		Example: `  kitbox events t --json | jq -r '.[] | select(.kind == "phase") | .text'
  kitbox events t --follow`,
		Args:              argument.One("NAME"),
		ValidArgsFunction: e.Names,
		RunE: e.OnSandbox(func(cmd *cobra.Command, sb sandbox.Sandbox, _ []string) error {
			evs, err := eventsOf(cmd, sb)
			if err != nil {
				return err
			}
			if follow {
				return followEvents(e, cmd, sb, evs, asJSON)
			}
			if asJSON {
				return output.JSON(e.Stdout, evs)
			}
			for _, v := range evs {
				if err := writeEvent(e, v, false); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	option.JSONVar(cmd, &asJSON)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more")
	return cmd
}

// writeEvent prints one event as a line.
func writeEvent(e *world.Env, v event, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(e.Stdout).Encode(v)
	}
	text := output.Printable(v.Text)
	if v.Reason != "" {
		text += ": " + output.Printable(v.Reason)
	}
	_, err := fmt.Fprintf(e.Stdout, "%s  %-8s %s\n", v.Time.Local().Format(time.RFC3339), v.Kind, text)
	return err
}

// lookAgain is how often events are looked for.
const lookAgain = 200 * time.Millisecond

// followEvents prints evs, and then what comes, until ctx or the sandbox ends.
func followEvents(e *world.Env, cmd *cobra.Command, sb sandbox.Sandbox, evs []event, asJSON bool) error {
	shown := map[event]int{} // equal ones can come several times at once
	for {
		now := map[event]int{}
		for _, v := range evs {
			if now[v]++; now[v] <= shown[v] {
				continue
			}
			if err := writeEvent(e, v, asJSON); err != nil {
				return err
			}
		}
		shown = now
		select {
		case <-cmd.Context().Done():
			return cmd.Context().Err()
		case <-time.After(lookAgain):
		}
		// Looked up anew: one that is removed has nothing more to tell.
		sb, err := e.Runtime.Open(cmd.Context(), sb.Name())
		if err == nil {
			evs, err = eventsOf(cmd, sb)
		}
		switch {
		case cmd.Context().Err() != nil:
			return cmd.Context().Err()
		case errors.Is(err, kiterr.ErrNotFound):
			return nil
		case err != nil:
			return err
		}
	}
}

func eventsOf(cmd *cobra.Command, sb sandbox.Sandbox) ([]event, error) {
	evs := []event{}
	in, err := sandbox.Inspect(cmd.Context(), sb)
	if err != nil {
		return nil, err
	}
	for _, line := range in.Journal {
		var j struct {
			Time  time.Time `json:"time"`
			Phase string    `json:"phase"`
			Note  string    `json:"note"`
		}
		if json.Unmarshal(line, &j) != nil || j.Phase == "" {
			continue // a line that a crash cut short never happened
		}
		v := event{Time: j.Time, Kind: "phase", Text: j.Phase}
		if j.Phase == "stopping" || j.Phase == "stopped" {
			v.Reason = j.Note
		}
		evs = append(evs, v)
	}
	runs, err := sandbox.HookRuns(cmd.Context(), sb)
	if err != nil && !errors.Is(err, kiterr.ErrUnsupported) {
		return nil, err
	}
	for _, r := range runs {
		evs = append(evs, event{Time: r.Time, Kind: "hook", Text: fmt.Sprintf("%s hook %d of %s ended with status %d", summary.HookList(r.Phase), r.Index, r.Kit, r.ExitCode), Reason: r.Error})
	}
	for ev, err := range sandbox.PolicyLog(cmd.Context(), sb, sandbox.PolicyLogOptions{}) {
		if errors.Is(err, kiterr.ErrUnsupported) {
			break
		}
		if err != nil {
			return nil, err
		}
		if !ev.Allowed {
			evs = append(evs, event{Time: ev.Time, Kind: "refused", Text: summary.Destination(ev), Reason: ev.Reason})
		}
	}
	slices.SortStableFunc(evs, func(a, b event) int { return a.Time.Compare(b.Time) })
	return evs, nil
}
