package registry

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/authoring"
)

// Names in the store. None of them is ever looked up on a network.
const (
	// Offered begins the names of Kits that the operator lets sandboxes read:
	// Offered+"a/b:1" is kits/a/b:1 to all of them.
	Offered = fetch.LocalDomain + "/kits/"

	// pushed begins the names of what sandboxes push; the next component is
	// the sandbox.
	pushed = fetch.LocalDomain + "/sandboxes/"

	// namespace begins the repositories of Kits, as sandboxes name them.
	namespace = "kits/"
)

// Pushed returns what begins the names, in the store, of what sandbox owner has
// pushed: Pushed(owner)+"a/b:1" is its kits/a/b:1.
func Pushed(owner string) string { return pushed + owner + "/" }

var (
	repository = sync.OnceValue(func() *regexp.Regexp {
		const part = `[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*`
		return regexp.MustCompile(`^` + part + `(?:/` + part + `)*$`)
	})
	tag = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`) })
)

// maxRepository is the longest name that distribution registries take, in bytes.
const maxRepository = 200

func checkRepository(repo string) error {
	if len(repo) > maxRepository || !repository().MatchString(repo) {
		return &fault{http.StatusBadRequest, "NAME_INVALID", "the name of a repository is lower case letters and digits, with '.', '_', '-' and '/' between them"}
	}
	return nil
}

// A view is what one repository shows: what each tag stands for.
type view map[string]named

type named struct {
	ocispec.Descriptor
	own bool // the sandbox pushed it
	kit bool // it must be a Kit to be served
}

// view reads the repository out of the store's index. A name of the operator's
// hides the sandbox's own, which it cannot have been given while that was there.
func (s *Server) view(repo string) (view, error) {
	tags, err := s.images.Tags()
	if err != nil {
		return nil, err
	}
	v := view{}
	add := func(prefix string, own, kit bool) {
		for _, t := range tags {
			if name, ok := strings.CutPrefix(t.Name, prefix+":"); ok && tag().MatchString(name) {
				v[name] = named{t.Descriptor, own, kit}
			}
		}
	}
	if rest, ok := strings.CutPrefix(repo, namespace); ok {
		add(Pushed(s.owner)+rest, true, true)
		add(Offered+rest, false, true)
	}
	if repo == authoring.Syntax {
		for _, prefix := range []string{repo, "docker.io/" + repo, fetch.LocalDomain + "/" + repo} {
			add(prefix, false, false)
		}
	}
	return v, nil
}

// writable returns where the sandbox's tag name of repo goes in the store.
func (s *Server) writable(v view, repo, name string) (string, error) {
	rest, ok := strings.CutPrefix(repo, namespace)
	if !ok {
		return "", denied("only repositories in " + namespace + " can be pushed to")
	}
	if !tag().MatchString(name) {
		return "", &fault{http.StatusBadRequest, "TAG_INVALID", "a tag is up to 128 letters, digits, '.', '_' and '-'"}
	}
	if old, there := v[name]; there && !old.own {
		return "", denied(fmt.Sprintf("%s:%s belongs to the host; choose another name", repo, name))
	}
	return Pushed(s.owner) + rest + ":" + name, nil
}
