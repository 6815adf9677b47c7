package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

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

func (e *Env) events() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "events NAME",
		Short: "Show what happened to a sandbox, in order",
		Long: `Shows the phases of a sandbox's life with the reasons of its stops, the runs of
its hooks, and what its boundary refused. "logs" shows what hooks printed and
"policy log" every decision.`,
		Example:           `  kitbox events t --json | jq -r '.[] | select(.kind == "phase") | .text'`,
		Args:              one("NAME"),
		ValidArgsFunction: e.names,
		RunE: func(cmd *cobra.Command, args []string) error {
			sb, err := e.Runtime.Open(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			evs, err := eventsOf(cmd, sb)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(e.Stdout, evs)
			}
			for _, v := range evs {
				text := printable(v.Text)
				if v.Reason != "" {
					text += ": " + printable(v.Reason)
				}
				fmt.Fprintf(e.Stdout, "%s  %-8s %s\n", v.Time.Local().Format(time.RFC3339), v.Kind, text)
			}
			return nil
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
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
		list := "install"
		if r.Phase == "runtime" {
			list = "startup"
		}
		evs = append(evs, event{Time: r.Time, Kind: "hook", Text: fmt.Sprintf("%s hook %d of %s ended with status %d", list, r.Index, r.Kit, r.ExitCode), Reason: r.Error})
	}
	for ev, err := range sandbox.PolicyLog(cmd.Context(), sb, sandbox.PolicyLogOptions{}) {
		if errors.Is(err, kiterr.ErrUnsupported) {
			break
		}
		if err != nil {
			return nil, err
		}
		if !ev.Allowed {
			evs = append(evs, event{Time: ev.Time, Kind: "refused", Text: destination(ev), Reason: ev.Reason})
		}
	}
	slices.SortStableFunc(evs, func(a, b event) int { return a.Time.Compare(b.Time) })
	return evs, nil
}
