// Package escape tries to get out of sandboxes. It is one table of attempts,
// each with a positive control: the same instrument, shown to work where nothing
// stands in its way. What comes out of an attempt is judged from outside, by what
// arrives.
//
// The tests run in a network namespace of their own in which every address
// answers: 8.8.8.8 is a resolver there, 169.254.169.254 a metadata service, and
// the program under test takes it for the host. What gets past a boundary
// therefore reaches something that tells.
package escape

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

// A place is where an attempt or its control runs.
type place string

const (
	// host is this process's own network namespace, with all its privileges.
	host place = "host"

	// plain is a sandbox as any Kit gets it; attempts run as its root.
	plain place = "plain"

	// strong is a sandbox with every capability of Linux in its own user
	// namespace, and the system calls that belong to them: what is out of
	// reach there does not depend on a filter of system calls.
	strong place = "strong"

	// rough is like strong. Its attempts change the network they live in, so
	// they run one after the other and put things back.
	rough place = "rough"

	// neighbour is another sandbox of the same user.
	neighbour place = "neighbour"
)

// An attempt is one way to try.
type attempt struct {
	name  string // its mark carries it, so it can be a label of a host name
	tries string // what is tried, for a reader

	// in is where attack runs, as root. Its error says what stopped it. Nil
	// means that it got what it must not get, unless arrives is set: then it
	// was able to try, and what arrives outside is what counts.
	in      place
	attack  func(w *world) error
	arrives bool

	// control is the positive control, run in at: it must succeed and, if
	// arrives is set, its mark must arrive. Nil stands for attack itself.
	control func(w *world) error
	at      place
}

func (a *attempt) mark(kind string) string { return kind + "-" + a.name + "-x" }

// attempts returns the whole table.
func attempts() []attempt {
	return slices.Concat(packets(), addresses(), resolvers(), tlsTricks(), httpTricks(), http2Tricks(), frames(), wires(), smuggling(), phases(), secrets(), tokenTricks(), fronts(), grants(), kernel(), mounts(), keepers(), interfaces(), disguises())
}

// wanted is how many ways are tried at least.
const wanted = 60

func TestThereAreEnoughAttempts(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range attempts() {
		switch {
		case seen[a.name]:
			t.Errorf("%s is there twice", a.name)
		case a.attack == nil || a.tries == "" || a.in == "" || a.at == "":
			t.Errorf("%s is incomplete", a.name)
		case a.in == host:
			t.Errorf("%s attacks from the outside", a.name)
		case a.control == nil && a.in == a.at:
			t.Errorf("%s is its own control", a.name)
		case len(a.mark("control")) > 63 || strings.ToLower(a.name) != a.name:
			t.Errorf("%s cannot be a label", a.name)
		}
		seen[a.name] = true
	}
	if len(seen) < wanted {
		t.Errorf("%d attempts, want %d", len(seen), wanted)
	}
}

// TestEveryAttemptIsHeld runs the controls and the attempts, and looks at the
// end whether anything arrived that must not: what is late counts as well. Then
// an ordinary user's sandboxes have to hold the same, those that an OCI runtime
// makes, and those of a host behind a proxy.
func TestEveryAttemptIsHeld(t *testing.T) {
	out := newOutside(t)
	takes := map[kind][]string{users: {"/etc/subuid", "/etc/subgid", "setpriv", "newuidmap"}, runtimes: {"crun"}}
	held := map[kind]int64{}
	for _, k := range []kind{roots, users, runtimes, behind} {
		t.Run(string(k), func(t *testing.T) {
			held[k] = -1
			for _, need := range takes[k] {
				if strings.HasPrefix(need, "/") {
					needs.File(t, need, "apt-get install uidmap")
				} else {
					needs.Program(t, need, "apt-get install uidmap util-linux crun")
				}
			}
			var ran atomic.Int64
			newEstate(t, out, k).all(t, &ran)
			held[k] = ran.Load()
		})
	}
	out.settle(500 * time.Millisecond)
	for _, a := range out.list() {
		if strings.HasPrefix(a.mark, "attack-") {
			t.Errorf("%s arrived %s", a.mark, a.where)
		}
	}
	// A run of a part of the table is judged by that part.
	for k, n := range held {
		if !filtered() && n >= 0 && n < wanted {
			t.Errorf("%s: %d attempts were tried and held, want %d", k, n, wanted)
		}
	}
}

// all runs the whole table.
func (e *estate) all(t *testing.T, ran *atomic.Int64) {
	table := attempts()
	group := func(name string, parallel bool, keep func(*attempt) bool) {
		t.Run(name, func(t *testing.T) {
			for i := range table {
				a := &table[i]
				if !keep(a) {
					continue
				}
				t.Run(a.name, func(t *testing.T) {
					if parallel {
						t.Parallel()
					}
					e.try(t, a)
					if !t.Failed() {
						ran.Add(1)
					}
				})
			}
		})
	}
	reach := func(when string) {
		for _, p := range []place{plain, strong, rough} {
			if err := e.run(t, p, "reach-the-allowed", "control", "still-"+string(p)+"-x"); err != nil {
				t.Errorf("%s cannot reach an allowed host %s: %v", p, when, err)
			}
		}
	}
	reach("before")
	group("all", true, func(a *attempt) bool { return a.in != rough })
	group("rough", false, func(a *attempt) bool { return a.in == rough })
	// The sandboxes are as they were: what was refused was not refused because
	// nothing worked any more.
	reach("after all this")
}

// try runs one attempt behind its control. What root's estate has shown to work
// need not be shown again in the others.
func (e *estate) try(t *testing.T, a *attempt) {
	t.Helper()
	if e.kind == roots {
		e.control(t, a)
	}
	mark := strings.TrimSuffix(a.mark("attack"), "x") + string(e.kind) + "-x"
	err := e.run(t, a.in, a.name, "attack", mark)
	switch {
	case errors.Is(err, errBroken):
		t.Fatalf("the attempt could not be made: %v", err)
	case err == nil && !a.arrives:
		t.Fatalf("not held: %s", a.tries)
	default:
		t.Logf("held: %v", err)
	}
}

func (e *estate) control(t *testing.T, a *attempt) {
	t.Helper()
	control := a.mark("control")
	err := e.run(t, a.at, a.name, "control", control)
	if errors.Is(err, errMissing) {
		// No requirement of the tests: what a kernel has not cannot be attacked.
		t.Skipf("this machine has no such thing: %v", err)
	}
	if err != nil {
		t.Fatalf("the control does not work: %v", err)
	}
	if a.arrives {
		came := e.out.wait(func(seen []arrival) bool {
			return slices.ContainsFunc(seen, func(x arrival) bool { return x.mark == control })
		}, 5*time.Second)
		if !came {
			t.Fatalf("nothing arrived of the control")
		}
	}
}

// filtered reports whether -run chose a part of the table.
func filtered() bool {
	for _, arg := range os.Args {
		if v, ok := strings.CutPrefix(arg, "-test.run="); ok && strings.Contains(v, "/") {
			return true
		}
	}
	return false
}
