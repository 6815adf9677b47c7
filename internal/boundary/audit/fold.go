package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// How many different destinations a sum names, by what became of them. More are
// counted per kind. A credential is presented to few hosts; of the others a rule
// with a wildcard lets a sandbox make up as many as it likes.
const (
	maxRefused  = 4096
	maxReached  = 16384
	maxPresents = 32768
)

var errEnding = errors.New("the log is being closed")

// fold folds all but the newest keep of the files of the log at path that were put
// aside into one, unless ending becomes true. A process that is killed meanwhile
// leaves them as they were, or both, of which the sum counts.
func fold(path string, keep int, ending func() bool) error {
	live, covered, err := parts(path)
	if err != nil {
		return err
	}
	for _, p := range covered {
		if err := os.Remove(p.path); err != nil {
			return err
		}
	}
	numbered := len(live)
	if numbered > 0 && live[0].sum {
		numbered--
	}
	if numbered <= keep {
		return nil
	}
	old := live[:len(live)-keep]
	s := sums{at: map[key]*Decision{}}
	for _, p := range old {
		if err := s.add(p.path, ending); err != nil {
			return err
		}
	}
	next := path + ".sum"
	if err := s.write(next); err != nil {
		return errors.Join(err, os.Remove(next))
	}
	if err := os.Rename(next, fmt.Sprintf("%s.%d.sum", path, old[len(old)-1].n)); err != nil {
		return err
	}
	for _, p := range old {
		if err := os.Remove(p.path); err != nil {
			return err
		}
	}
	return nil
}

// sums counts decisions by what they were about.
type sums struct {
	at                           map[key]*Decision
	order                        []*Decision
	refused, reached, presenting int
}

// add counts the decisions in the file at path.
func (s *sums) add(path string, ending func() bool) error {
	f, err := openPart(path, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 64<<10)
	var begun []byte
	for !ending() {
		line, err := readLine(r, &begun)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case len(line) > 0: // else it ends what was torn
			s.count(decode(line))
		}
	}
	return errEnding
}

func (s *sums) count(d Decision) {
	if d.Kind != Overflow {
		d.Method, d.Path, d.Dialled = "", "", ""
		d.Why = "old decisions, counted together; the time is that of the last"
	}
	most, n := maxReached, &s.reached
	switch {
	case d.Credential != "":
		most, n = maxPresents, &s.presenting
	case classOf(d) == refusal:
		most, n = maxRefused, &s.refused
	}
	k := keyOf(&d)
	if s.at[k] == nil && *n >= most {
		d = Decision{Schema: Schema, Time: d.Time, Sandbox: d.Sandbox, Phase: d.Phase, Kind: Overflow, Verdict: d.Verdict, Host: "*",
			Protocol: string(d.Kind), Credential: d.Credential, Why: "old decisions about more destinations than are kept", Count: d.Count}
		k = keyOf(&d)
	}
	if was := s.at[k]; was != nil {
		was.Count += d.Count
		if d.Time.After(was.Time) {
			was.Time = d.Time
		}
		return
	}
	*n++
	s.at[k] = &d
	s.order = append(s.order, &d)
}

// write writes the sums to a new file at path, the oldest first.
func (s *sums) write(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	slices.SortStableFunc(s.order, func(a, b *Decision) int { return a.Time.Compare(b.Time) })
	w := bufio.NewWriterSize(f, 64<<10)
	for _, d := range s.order {
		b, err := json.Marshal(d)
		if err == nil {
			_, err = w.Write(append(b, '\n'))
		}
		if err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(w.Flush(), f.Sync(), f.Close())
}
