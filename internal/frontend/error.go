package frontend

import (
	"context"
	"fmt"
	"strings"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/frontend/dockerui"
	"github.com/moby/buildkit/frontend/gateway/client"
	"github.com/moby/buildkit/solver/errdefs"
	"github.com/moby/buildkit/solver/pb"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
)

// An Error is a finding about the author's files. It belongs to the refused
// family.
type Error struct {
	File    string
	Line    int    // 1-based; 0: unknown
	Message string // one line
	Next    string // what to do about it; may be empty
	Excerpt string // lines of the file; may be empty

	cause error
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
		b.WriteString(": ")
	}
	b.WriteString(e.Message)
	if e.Next != "" {
		b.WriteString("; " + e.Next)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.cause }

// Is makes every Error match [kiterr.ErrRefused].
func (e *Error) Is(target error) bool { return target == kiterr.ErrRefused }

// source says where in src line is, so that BuildKit's clients show it.
func source(src *dockerui.Source, lines ...int) *errdefs.Source {
	s := &errdefs.Source{Info: sourceInfo(src.SourceMap)}
	for _, l := range lines {
		if l > 0 {
			s.Ranges = append(s.Ranges, lineRange(l))
		}
	}
	return s
}

func sourceInfo(m *llb.SourceMap) *pb.SourceInfo {
	info := &pb.SourceInfo{Data: m.Data, Filename: m.Filename, Language: m.Language}
	if m.Definition != nil {
		info.Definition = m.Definition.ToPB()
	}
	return info
}

func lineRange(l int) *pb.Range {
	return &pb.Range{Start: &pb.Position{Line: int32(l)}, End: &pb.Position{Line: int32(l)}}
}

// invalid turns findings that include an error into one error.
func (k *kit) invalid(ds spec.Diagnostics) error {
	err := ds.Err()
	if err == nil {
		return nil
	}
	e := &Error{File: k.source.Filename, cause: err}
	var lines []int
	var excerpt strings.Builder
	n := 0
	for _, d := range ds {
		if d.Severity != spec.Error {
			continue
		}
		if n++; n == 1 {
			e.Line, e.Message = d.Line, d.Message
			if d.Path != "" {
				e.Message = d.Path + ": " + d.Message
			}
		} else {
			fmt.Fprintln(&excerpt, d)
		}
		if d.Line > 0 {
			lines = append(lines, d.Line)
		}
		if d.Excerpt != "" {
			fmt.Fprintln(&excerpt, d.Excerpt)
		}
	}
	if n > 1 {
		e.Message += fmt.Sprintf(" (and %d more)", n-1)
	}
	e.Excerpt = excerpt.String()
	return errdefs.WithSource(e, source(k.source, lines...))
}

// fault is one finding of this package about the descriptor's field key.
func (k *kit) fault(key, message, next, statement string) error {
	if statement != "" {
		message += " [" + statement + "]"
	}
	return k.faultAt(k.lineOfKey(key), message, next)
}

// faultAt is one that is about a line; 0 is none.
func (k *kit) faultAt(line int, message, next string) error {
	return errdefs.WithSource(&Error{File: k.source.Filename, Line: line, Message: message, Next: next}, source(k.source, line))
}

// warn tells the client about findings that do not stop the build.
func (k *kit) warn(ctx context.Context, ds spec.Diagnostics) {
	for _, d := range ds {
		if d.Severity != spec.Warning {
			continue
		}
		opts := client.WarnOpts{SourceInfo: sourceInfo(k.source.SourceMap)}
		if d.Line > 0 {
			opts.Range = []*pb.Range{lineRange(d.Line)}
		}
		if d.Excerpt != "" {
			opts.Detail = [][]byte{[]byte(d.Excerpt)}
		}
		text := d.Message
		if d.Path != "" {
			text = d.Path + ": " + text
		}
		k.source.Warn(ctx, text, opts)
	}
}
