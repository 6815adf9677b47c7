package frontend

import (
	"context"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/gateway/client"
	fstypes "github.com/tonistiigi/fsutil/types"

	"github.com/kitbox-dev/kitbox/spec/annotation"
	"github.com/kitbox-dev/kitbox/tck"
	"github.com/kitbox-dev/kitbox/tck/artifact/rule"
)

// A forest is a reference to many directories: /opt/0 and so on, with a link in
// each, and one file behind them.
type forest struct {
	client.Reference
	dirs, asked int
}

func (f *forest) ReadDir(_ context.Context, r client.ReadDirRequest) ([]*fstypes.Stat, error) {
	f.asked++
	dir := func(name string) *fstypes.Stat {
		return &fstypes.Stat{Path: name, Mode: uint32(os.ModeDir | 0o755)}
	}
	switch {
	case r.Path == "/":
		return []*fstypes.Stat{dir("opt"), dir("zoo")}, nil
	case r.Path == "/opt":
		var out []*fstypes.Stat
		for n := range f.dirs {
			out = append(out, dir(fmt.Sprintf("%06d", n)))
		}
		return out, nil
	case path.Dir(r.Path) == "/opt":
		n, err := strconv.Atoi(path.Base(r.Path))
		return []*fstypes.Stat{{Path: "link", Mode: uint32(os.ModeSymlink | 0o777), Linkname: fmt.Sprintf("../%06d", (n+1)%f.dirs)}}, err
	case r.Path == "/zoo":
		return []*fstypes.Stat{{Path: "guide.md", Mode: 0o644}}, nil
	}
	return nil, os.ErrNotExist
}

// TestLargeMixinsAreBuilt: what a mixin should be is looked at as far as that
// takes no minutes, what it has to be always.
func TestLargeMixinsAreBuilt(t *testing.T) {
	const text = `{"schemaVersion":"3","kind":"mixin","capabilities":[{"type":"com.docker.sandbox/agent-context@1","config":{"contentFile":"/zoo/guide.md"}}]}`
	for _, c := range []struct {
		dirs int
		warn bool
	}{{100, false}, {100_000, true}} {
		ref := &forest{dirs: c.dirs}
		v := &view{ctx: t.Context(), ref: ref}
		im := &rule.Image{Platform: "linux/amd64", Files: v}
		im.Manifest.Annotations = map[string]string{annotation.Descriptor: text}
		warned := false
		for _, d := range rule.Judge(&rule.Subject{Draft: true, Images: []*rule.Image{im}}).Verdicts {
			switch {
			case d.Statement == "SPEC-v3 §10/overlay-links-resolve":
				warned = d.Outcome == tck.Warn && strings.Contains(d.Message, "kit-tck validate")
			case d.Statement == "agent-context@1/content-file-present" && d.Outcome != tck.Pass:
				t.Errorf("%d directories: %v", c.dirs, d)
			}
		}
		if v.err != nil || warned != c.warn || ref.asked > spareDirs+100 {
			t.Errorf("%d directories: %v, warned %v, asked for %d", c.dirs, v.err, warned, ref.asked)
		}
	}
}
