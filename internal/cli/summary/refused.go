package summary

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/kitbox-dev/kitbox/internal/cli/output"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// sameQuestion is how far apart two questions for one name may be that a program
// asked as one: its resolver asks for both families of addresses.
const sameQuestion = time.Second

// OnceEach yields what log does, and of a question for a name that was asked
// twice at once, for IPv4 and for IPv6, only the first: a person asked once. An
// event that stands for several is always yielded, so that no count is lost.
func OnceEach(log iter.Seq2[sandbox.PolicyEvent, error]) iter.Seq2[sandbox.PolicyEvent, error] {
	return func(yield func(sandbox.PolicyEvent, error) bool) {
		var last sandbox.PolicyEvent
		for ev, err := range log {
			if err == nil && ev.Kind == "dns" && ev.Count <= 1 {
				same := last
				same.Time = ev.Time
				if gap := ev.Time.Sub(last.Time); same == ev && gap >= 0 && gap < sameQuestion {
					last = sandbox.PolicyEvent{} // a third one is another question
					continue
				}
			}
			last = ev
			if !yield(ev, err) {
				return
			}
		}
	}
}

// Refused prints, after the command, what its boundary declined. A sandbox that
// cannot say prints nothing.
func Refused(ctx context.Context, w io.Writer, sb sandbox.Sandbox) {
	var events []sandbox.PolicyEvent
	for ev, err := range OnceEach(sandbox.PolicyLog(ctx, sb, sandbox.PolicyLogOptions{})) {
		if err != nil {
			return
		}
		if !ev.Allowed {
			events = append(events, ev)
		}
	}
	writeRefused(w, sb.Name(), events)
}

// RefusedHook prints what the boundary declined before an install hook failed,
// and which entries would allow it.
func RefusedHook(w io.Writer, err error) {
	var h *sandbox.HookError
	if !errors.As(err, &h) || len(h.Refused) == 0 {
		return
	}
	writeRefused(w, h.Sandbox, h.Refused)
	var hosts []string
	for _, ev := range h.Refused {
		if ev.Host != "" && ev.Host != "*" {
			hosts = append(hosts, strconv.Quote(output.Printable(ev.Host)))
		}
	}
	if hosts = dedupe(hosts); len(hosts) > 0 && len(hosts) <= mostRefused {
		fmt.Fprintf(w, "  if %s needs that, add to its network-policy: install: {allow: [%s]}\n", output.Printable(h.Kit), strings.Join(hosts, ", "))
	}
}

// mostRefused is how many refusals are told before the log is named instead.
const mostRefused = 10

func writeRefused(out io.Writer, name string, events []sandbox.PolicyEvent) {
	type what struct{ name, reason string }
	counts := map[what]int{}
	var order []what
	for _, ev := range events {
		w := what{Destination(ev), ev.Reason}
		if counts[w] == 0 {
			order = append(order, w)
		}
		counts[w] += max(ev.Count, 1)
	}
	if len(order) == 0 {
		return
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "kitbox: %s was refused\n", name)
	for i, w := range order {
		if i == mostRefused {
			fmt.Fprintf(&b, "  and %d more; see \"kitbox policy log\"\n", len(order)-mostRefused)
			break
		}
		times := ""
		if counts[w] > 1 {
			times = fmt.Sprintf(" (%d times)", counts[w])
		}
		fmt.Fprintf(&b, "  %s: %s%s\n", output.Printable(w.name), output.Printable(w.reason), times)
	}
	_, _ = out.Write(b.Bytes())
}

// Destination is what ev is about: a kind of traffic and where it was to go.
func Destination(ev sandbox.PolicyEvent) string {
	host := ev.Host
	if ev.Port != 0 {
		host = net.JoinHostPort(host, strconv.Itoa(int(ev.Port)))
	}
	if ev.Method != "" {
		host = ev.Method + " " + host + ev.Path
	}
	return ev.Kind + " " + host
}
