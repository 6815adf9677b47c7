package builder

import (
	"context"
	"regexp"
	"strings"
	"sync"

	"github.com/distribution/reference"
	"github.com/moby/buildkit/executor"
	bkfrontend "github.com/moby/buildkit/frontend"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/solver/pb"

	"github.com/kitbox-dev/kitbox/internal/authoring"
)

// standIn is the frontend that runs images, but for the image that the syntax lines of
// Kits name: that one's place is taken by what is built in, as in every build of our
// own. Stock clients then build Kits without a registry to have a frontend from, and
// what they build is what we build.
type standIn struct {
	bkfrontend.Frontend // for all other images
	builtin             bkfrontend.Frontend
}

// Solve implements [bkfrontend.Frontend].
func (s standIn) Solve(ctx context.Context, llb bkfrontend.FrontendLLBBridge, exec executor.Executor, opts map[string]string, inputs map[string]*pb.Definition, sid string, sm *session.Manager) (*bkfrontend.Result, error) {
	if isOurs(opts) {
		return s.builtin.Solve(ctx, llb, exec, opts, inputs, sid, sm)
	}
	return s.Frontend.Solve(ctx, llb, exec, opts, inputs, sid, sm)
}

// thirdFormat matches the tags of the frontend for the third format, which is what is
// built in.
var thirdFormat = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^3(?:\.[0-9]{1,4}){0,2}$`) })

// isOurs reports whether opts ask for the frontend that is built in. A digest is for one
// image alone, and so is a context that the client gives under the image's name.
func isOurs(opts map[string]string) bool {
	named, err := reference.ParseNormalizedNamed(opts[bkfrontend.KeySource])
	if err != nil || reference.FamiliarName(named) != authoring.Syntax {
		return false
	}
	tagged, ok := named.(reference.Tagged)
	if _, pinned := named.(reference.Digested); !ok || pinned || !thirdFormat().MatchString(tagged.Tag()) {
		return false
	}
	for key := range opts {
		name, ok := strings.CutPrefix(key, "context:")
		if !ok {
			continue
		}
		name, _, _ = strings.Cut(name, "::") // a platform
		if given, err := reference.ParseNormalizedNamed(name); err == nil && reference.FamiliarName(given) == authoring.Syntax {
			return false
		}
	}
	return true
}
