package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/internal/store/layout"
)

// A ledger records what a sandbox brought into the store, so that stopping and
// starting it gives no new quota. What the store does not have any more is not
// counted. It is guarded by the server's mutex.
type ledger struct {
	path  string // empty: nothing outlives the server
	bytes map[digest.Digest]int64
	lines int // of the file; what was forgotten has some, too
}

type ledgerLine struct {
	Digest digest.Digest `json:"digest"`
	Bytes  int64         `json:"bytes"`
}

// openLedger reads the ledger at path, without what images has lost.
func openLedger(path string, images *layout.Store) (*ledger, int64, error) {
	l := &ledger{path: path, bytes: map[digest.Digest]int64{}}
	if path == "" {
		return l, 0, nil
	}
	lines, err := durable.Lines(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, 0, err
	}
	total := int64(0)
	var kept bytes.Buffer
	for i, text := range lines {
		var line ledgerLine
		if err := json.Unmarshal(text, &line); err != nil || line.Digest.Validate() != nil || line.Bytes < 0 {
			return nil, 0, fmt.Errorf("%s: line %d does not say what was pushed; delete the file to count from now on", path, i+1)
		}
		there, err := images.Exists(context.Background(), ocispec.Descriptor{Digest: line.Digest})
		if err != nil {
			return nil, 0, err
		}
		if _, again := l.bytes[line.Digest]; again || !there {
			continue
		}
		l.bytes[line.Digest] = line.Bytes
		total += line.Bytes
		kept.Write(text)
		kept.WriteByte('\n')
	}
	if len(lines) != len(l.bytes) {
		if err := durable.WriteFile(path, kept.Bytes(), 0o600); err != nil {
			return nil, 0, durable.Explain(path, err)
		}
	}
	l.lines = len(l.bytes)
	return l, total, nil
}

// add records d before it is stored: a record too many is dropped at the next
// start, and one too few would be room for nothing.
func (l *ledger) add(d digest.Digest, n int64) error {
	if len(l.bytes) >= maxKnown {
		return denied(fmt.Sprintf("a sandbox may have pushed %d blobs", maxKnown))
	}
	if l.path != "" {
		b, err := json.Marshal(ledgerLine{d, n})
		if err != nil {
			return err
		}
		if err := durable.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
			return err
		}
		// A push that breaks off can be repeated for ever.
		if l.lines >= 2*maxKnown {
			if err := l.rewrite(); err != nil {
				return err
			}
		}
		if err := durable.AppendLine(l.path, b); err != nil {
			return err
		}
		l.lines++
	}
	l.bytes[d] = n
	return nil
}

// rewrite leaves in the file what is not forgotten.
func (l *ledger) rewrite() error {
	var kept bytes.Buffer
	for d, n := range l.bytes {
		b, err := json.Marshal(ledgerLine{d, n})
		if err != nil {
			return err
		}
		kept.Write(append(b, '\n'))
	}
	if err := durable.WriteFile(l.path, kept.Bytes(), 0o600); err != nil {
		return durable.Explain(l.path, err)
	}
	l.lines = len(l.bytes)
	return nil
}

// record is add for what is about to be stored.
func (s *Server) record(d digest.Digest, n int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.add(d, n)
}

// forget takes back what was not stored after all.
func (s *Server) forget(d digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ledger.bytes, d)
}
