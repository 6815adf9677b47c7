package audit

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
)

// maxLine bounds a line in bytes: nine texts of [maxField] bytes, each of which JSON
// may write as six, and the rest.
const maxLine = 64 << 10

// Read yields the decisions of the log at path, the oldest first, through all files
// that were put aside, and the first error. A line that a killed process did not
// write to its end is one of kind [Overflow] that says so.
//
// wait is called when there is no more: it returns true to look again, once there may
// be. Nil ends there. ctx ends it too.
func Read(ctx context.Context, path string, wait func() bool) iter.Seq2[Decision, error] {
	return func(yield func(Decision, error) bool) {
		r := &reader{path: path}
		defer r.close()
		for ctx.Err() == nil {
			line, err := r.line()
			switch {
			case err == nil && len(line) == 0: // ends what was torn
			case err == nil:
				if !yield(decode(line), nil) {
					return
				}
			case !errors.Is(err, io.EOF):
				yield(Decision{}, err)
				return
			case wait == nil || !wait():
				return
			}
		}
	}
}

// decode reads one line.
func decode(line []byte) Decision {
	var d Decision
	if err := json.Unmarshal(line, &d); err != nil || d.Count < 1 {
		return Decision{Schema: Schema, Kind: Overflow, Verdict: Failed, Host: "*", Why: "a line of the log that was not written to its end", Count: 1}
	}
	return d
}

// A reader goes through the files of a log.
type reader struct {
	path    string
	f       *os.File // nil: none is open
	r       *bufio.Reader
	n       int    // the number of f, or what it gets when it is put aside
	current bool   // f is written to
	aside   bool   // and has been put aside since
	begun   []byte // of a line
}

func (r *reader) close() {
	if r.f != nil {
		r.f.Close()
		r.f = nil
	}
}

// line returns the next line without its end; io.EOF when there is none yet.
func (r *reader) line() ([]byte, error) {
	for {
		if r.f == nil {
			if err := r.open(); err != nil {
				return nil, err
			}
		}
		line, err := readLine(r.r, &r.begun)
		if !errors.Is(err, io.EOF) {
			return line, err
		}
		if r.current && !r.aside {
			if r.aside, err = r.moved(); err != nil {
				return nil, err
			}
			if !r.aside {
				return nil, io.EOF
			}
			continue // what was written between the two looks
		}
		r.close()
		r.begun = nil
	}
}

// readLine returns the next line of r without its end; io.EOF with what there is of
// it in begun if it has none.
func readLine(r *bufio.Reader, begun *[]byte) ([]byte, error) {
	for {
		b, err := r.ReadSlice('\n')
		end := err == nil
		if end {
			b = b[:len(b)-1]
		}
		if len(*begun)+len(b) <= maxLine { // the rest of a longer one only makes it none
			*begun = append(*begun, b...)
		}
		if end {
			line := *begun
			*begun = nil
			return line, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}

// moved reports whether the file that is read has been put aside.
func (r *reader) moved() (bool, error) {
	now, err := os.Stat(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // about to be, or the sandbox is removed
	}
	if err != nil {
		return false, err
	}
	mine, err := r.f.Stat()
	if err != nil {
		return false, err
	}
	return !os.SameFile(now, mine), nil
}

// open opens the file after that with the number r.n.
func (r *reader) open() error {
	for {
		p, err := r.next()
		if err != nil {
			return err
		}
		f, err := openPart(p.path, os.O_RDONLY)
		if errors.Is(err, fs.ErrNotExist) {
			if p.n == 0 {
				return io.EOF
			}
			continue // has been folded meanwhile
		}
		if err != nil {
			return err
		}
		if p.n == 0 {
			// It may have been put aside between the two looks.
			again, err := r.next()
			if err != nil || again.n != 0 {
				f.Close()
				if err != nil {
					return err
				}
				continue
			}
			r.n++
		} else {
			r.n = p.n
		}
		r.f, r.r, r.current, r.aside = f, bufio.NewReaderSize(f, 64<<10), p.n == 0, false
		return nil
	}
}

// next is the part after r.n; that with number 0 is the one that is written to.
func (r *reader) next() (part, error) {
	live, _, err := parts(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return part{}, io.EOF
	}
	if err != nil {
		return part{}, err
	}
	for _, p := range live {
		if p.n > r.n {
			return p, nil
		}
	}
	return part{path: r.path}, nil
}
