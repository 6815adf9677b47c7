package sandbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// bare has what every sandbox and runtime has, and no ability.
type bare struct{ sandbox.Sandbox }
type bareRuntime struct{ sandbox.Runtime }

// volumes is a runtime with one ability.
type volumes struct{ sandbox.Runtime }

func (volumes) Volumes(context.Context, string) ([]sandbox.Volume, error) { return nil, nil }
func (volumes) RemoveVolume(context.Context, string, string) error        { return nil }

func TestWhatIsNotHadIsUnsupportedAndNamed(t *testing.T) {
	ctx, s, r := t.Context(), bare{}, bareRuntime{}
	first := func(_ any, err error) error { return err }
	for what, err := range map[string]error{
		"hook log":                     first(sandbox.HookRuns(ctx, s)),
		"inspecting":                   first(sandbox.Inspect(ctx, s)),
		"ports":                        first(sandbox.Ports(ctx, s)),
		"recreating":                   sandbox.Recreate(ctx, s, sandbox.RecreateOptions{}),
		"cloned workspace":             sandbox.Bundle(ctx, s, nil),
		"copying files":                first(sandbox.Files(s)),
		"running a command for nobody": first(sandbox.Detach(s)),
		"volumes":                      first(sandbox.VolumesOf(r)),
		"host mounts":                  first(sandbox.HostMountsOf(r)),
		"pruning":                      first(sandbox.Prune(ctx, r, sandbox.PruneOptions{})),
		"locks":                        first(sandbox.ManageLocks(r)),
		"operator rules":               first(sandbox.PolicyOf(r)),
		"secrets":                      first(sandbox.SecretsOf(r)),
	} {
		if !errors.Is(err, kiterr.ErrUnsupported) || !strings.HasPrefix(err.Error(), what+" with sandbox_test.bare") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if k, err := sandbox.VolumesOf(volumes{}); k == nil || err != nil {
		t.Errorf("%v, %v", k, err)
	}
}
