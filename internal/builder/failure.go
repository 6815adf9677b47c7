package builder

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/moby/buildkit/solver/errdefs"
	"github.com/moby/buildkit/solver/pb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kitbox-dev/kitbox/internal/frontend"
	"github.com/kitbox-dev/kitbox/kiterr"
)

// A Failure is a build that did not work out, told for the person who can do
// something about it.
type Failure struct {
	File    string   `json:"file,omitzero"` // the descriptor or recipe, as the author named it
	Line    int      `json:"line,omitzero"` // 1-based; 0: unknown
	Message string   `json:"message"`       // one line, what failed
	Next    string   `json:"next,omitzero"` // one line, what to do about it
	Output  []string `json:"output,omitzero"`
	Excerpt string   `json:"excerpt,omitzero"` // the lines around File:Line

	family error
	cause  error
}

// Error is one line.
func (f *Failure) Error() string {
	return (&frontend.Error{File: f.File, Line: f.Line, Message: f.Message, Next: f.Next}).Error()
}

// Unwrap gives the family, see package kiterr, and what BuildKit said.
func (f *Failure) Unwrap() []error {
	var errs []error
	for _, err := range []error{f.family, f.cause} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

var (
	// BuildKit's texts; they carry no type across the wire.
	sourceMetadata = regexp.MustCompile(`failed to resolve source metadata for (\S+): (.*)$`)
	exitCode       = regexp.MustCompile(`did not complete successfully: (exit code: \d+)`)

	notInContext = regexp.MustCompile(`failed to calculate checksum of ref \S+: "?(/[^"]*?)"?: not found`)

	noSpace = regexp.MustCompile(`(?i)no space left on device`)

	// What programs say that lack the rights of root.
	rightsSymptom = regexp.MustCompile(`(?i)permission denied|operation not permitted|are you root|(?:must|need to) be (?:run as )?root|requires? root|EACCES|EPERM`)

	// What programs say when there is no network, and one must not guess
	// from an exit code.
	networkSymptom = regexp.MustCompile(`(?i)could not resolve|couldn't resolve|temporary failure (in name resolution|resolving)|name or service not known|network is unreachable|no such host|bad address|unable to resolve host|name resolution|Connection refused|ENETUNREACH|EAI_AGAIN|failed to fetch`)
)

// runsAs is the user of the step that failed with err; empty when that is root, or not
// known.
func runsAs(err error) string {
	var s *errdefs.SolveError
	if !errors.As(err, &s) || s.Solve == nil {
		return ""
	}
	user := s.Op.GetExec().GetMeta().GetUser()
	switch name, _, _ := strings.Cut(user, ":"); name {
	case "root", "0":
		return ""
	}
	return user
}

// explain turns err, the failure of a build of r, into a [*Failure]. Cause is
// the frontend's own error, if it had one.
func (r *Request) explain(err, cause error, obs *observer) error {
	if cause == nil {
		cause = err
	}
	f := &Failure{Message: lastClause(cause.Error()), cause: cause}
	for _, family := range []error{kiterr.ErrRefused, kiterr.ErrNotFound, kiterr.ErrUnsupported, kiterr.ErrUnavailable} {
		if errors.Is(cause, family) {
			f.family = family
			break
		}
	}
	f.locate(cause)

	var said *frontend.Error
	var base *baseError
	text := cause.Error()
	st := obs.failed()
	switch {
	case status.Code(err) == codes.Unavailable || strings.Contains(err.Error(), "error reading from server: EOF"):
		f.Message = "the builder ended while it was building"
		f.Next = "build again; if it persists, see " + r.builderLog()
		f.family = kiterr.ErrUnavailable
	case errors.As(cause, &said):
		f.Message, f.Next = said.Message, said.Next
		f.File, f.Line = said.File, said.Line
		f.Excerpt = said.Excerpt
	case errors.As(cause, &base):
		f.Message, f.Next = base.text, base.next
	case notInContext.MatchString(text):
		// COPY names paths from the root of where it copies from.
		f.Message = fmt.Sprintf("there is no %s where this copies from", notInContext.FindStringSubmatch(text)[1])
		f.Next = "without --from that is the Kit's directory, less what .dockerignore leaves out"
	case strings.Contains(text, "network.host is not allowed"):
		f.Message = "a step asks for the host's network"
		f.Next = "take that out of the recipe, or consent with --build-network host"
		f.family = kiterr.ErrRefused
	case st != nil && exitCode.MatchString(text):
		m := recipeStep.FindStringSubmatch(st.name)
		name := st.name
		if m != nil {
			name = m[1]
		}
		f.Output = st.output()
		f.Message = fmt.Sprintf("step %q failed with %s", oneLine(name, 120), exitCode.FindStringSubmatch(text)[1])
		if n := len(f.Output); n > 0 {
			f.Message += ": " + oneLine(f.Output[n-1], 200)
		}
		if noSpace.MatchString(strings.Join(f.Output, "\n")) {
			f.Next, f.family = "the disk is full: "+nextDiskFull, kiterr.ErrUnavailable
		} else if r.Network == NetworkNone && networkSymptom.MatchString(strings.Join(f.Output, "\n")) {
			f.Next = "RUN steps have no network; to let this recipe reach public hosts, build with --build-network public"
		} else if user := runsAs(cause); user != "" && rightsSymptom.MatchString(strings.Join(f.Output, "\n")) {
			f.Next = fmt.Sprintf("it runs as the user %s: write USER root before it, and USER %s after it", oneLine(user, 60), oneLine(user, 60))
		}
	case noSpace.MatchString(text) || noSpace.MatchString(err.Error()):
		return diskFull(syscall.ENOSPC)
	default:
		if m := sourceMetadata.FindStringSubmatch(text); m != nil {
			f.missingBase(m[1], m[2])
		}
	}
	return f
}

// builderLog names where the builder that r uses tells its side.
func (r *Request) builderLog() string {
	if r.Builder != "" {
		return "the log of " + r.Builder
	}
	return filepath.Join(r.Home, "builder", logName)
}

func (f *Failure) missingBase(ref, why string) {
	f.family = kiterr.ErrNotFound
	switch {
	case strings.HasPrefix(ref, LocalDomain+"/base:"):
		f.Message = fmt.Sprintf("base image %s is not in the local store", ref)
		f.Next = "make it with: kitbox base create"
		if ref != LocalDomain+"/base:1" && !strings.Contains(ref, "@") {
			f.Next = fmt.Sprintf("make it with: kitbox base create --tag %s, or start from %s/base:1", ref, LocalDomain)
		}
	case strings.HasPrefix(ref, LocalDomain+"/"):
		f.Message = fmt.Sprintf("image %s is not in the local store", ref)
		f.Next = "kitbox images lists what is"
		if !strings.Contains(ref, "@") {
			f.Next += "; a Kit of that name is made by: kitbox build --tag " + ref + " DIR"
		}
	default:
		f.Message = fmt.Sprintf("base image %s cannot be had: %s", ref, lastClause(why))
		f.Next = fmt.Sprintf("check its name and the registry, or start from %s/base:1 (kitbox base create)", LocalDomain)
	}
}

// locate takes the place from err: the innermost source is the closest.
func (f *Failure) locate(err error) {
	sources := errdefs.Sources(err)
	if len(sources) == 0 || sources[0].Info == nil {
		return
	}
	s := sources[0]
	f.File = s.Info.Filename
	f.Line = firstLine(s.Ranges)
	var b strings.Builder
	s.Print(&b)
	f.Excerpt = b.String()
}

func firstLine(ranges []*pb.Range) int {
	if len(ranges) == 0 || ranges[0].Start == nil {
		return 0
	}
	return int(ranges[0].Start.Line)
}

// lastClause takes BuildKit's own wrapping off a message.
func lastClause(s string) string {
	for _, p := range []string{"failed to solve: ", "failed to run Build function: ", "rpc error: code = Unknown desc = "} {
		if i := strings.LastIndex(s, p); i >= 0 {
			s = s[i+len(p):]
		}
	}
	return oneLine(s, 400)
}

func oneLine(s string, limit int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return s
}

const nextDiskFull = "free some space, or drop the build cache with kit-builder prune"

// diskFull names what a full disk prevents; other errors pass.
func diskFull(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return &Failure{Message: "the disk is full", Next: nextDiskFull, family: kiterr.ErrUnavailable, cause: err}
	}
	return err
}

// AsFailure returns err as a [*Failure], making one of other errors.
func AsFailure(err error) *Failure {
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	return &Failure{Message: oneLine(err.Error(), 2000), cause: err}
}
