package compose

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/workspace"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/resolve"
	"github.com/kitbox-dev/kitbox/sandbox"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/expand"
	"github.com/kitbox-dev/kitbox/spec/surface"
)

// Lock returns the lock of what o asks for, as [sandbox.Locker] says. It reads
// documents only, unless a Kit refers to the container's environment, which is in
// the layers as well.
func (c *Composer) Lock(ctx context.Context, o sandbox.CreateOptions) (*sandbox.Lock, error) {
	if err := Pinned(&o); err != nil {
		return nil, err
	}
	kits, err := c.load(ctx, o)
	if err != nil {
		return nil, err
	}
	set, err := resolve.Resolve(resolvable(kits), resolve.Options{})
	if err != nil {
		return nil, err
	}
	declared := set.Declarations
	config, err := imageConfig(ordered(set.Layers, kits))
	if err != nil {
		return nil, err
	}
	var who plan.Identity
	if slices.ContainsFunc(declared, refersToEnvironment) {
		dirs, err := c.rootfs(ctx, o, ordered(set.Layers, kits))
		if err != nil {
			return nil, err
		}
		scene, err := newScene("lock", "lock", workspace.Given{}, config, dirs)
		if err != nil {
			return nil, err
		}
		who = scene.Image.Identity
	}
	env := containerEnv(config, who, kits, o.Env)
	for i := range declared {
		if declared[i].Descriptor, err = expand.Env(declared[i].Descriptor, env); err != nil {
			return nil, fmt.Errorf("kit %s: %w", declared[i].Ref, err)
		}
	}
	l := &sandbox.Lock{Version: sandbox.LockVersion, Kits: []sandbox.LockedKit{}, Args: o.Args, Surface: asks(declared).Canonical()}
	for _, k := range ordered(declared, kits) {
		l.Kits = append(l.Kits, sandbox.LockedKit{Ref: k.image.Ref, Digest: k.image.Root.String(), Kind: k.descriptor.Kind, Commit: k.image.Commit})
	}
	return l, nil
}

func refersToEnvironment(k resolve.Kit) bool {
	b, err := k.Descriptor.MarshalJSON()
	return err != nil || bytes.Contains(b, []byte("kit.env."))
}

// asks is the surface of all that kits ask, taken or not.
func asks(kits []resolve.Kit) surface.Surface {
	var cs []capability.Contribution
	for _, k := range kits {
		for _, r := range k.Descriptor.Requests() {
			cs = append(cs, capability.Contribution{Kit: k.Ref, Request: r})
		}
	}
	return surface.ProjectKits(cs)
}

// Pinned makes o say what its lock does, and refuses one that says something else.
func Pinned(o *sandbox.CreateOptions) error {
	if o.Lock == nil {
		return nil
	}
	var refs []string
	for _, k := range o.Lock.Kits {
		if k.Kind == spec.KindWorkload { // a sandbox is named after the first
			refs = slices.Insert(refs, 0, k.Ref)
		} else {
			refs = append(refs, k.Ref)
		}
	}
	for _, ref := range o.Kits {
		if !slices.Contains(refs, ref) {
			return fmt.Errorf("kit %s is not in the lock, which has %s: leave it out, or make the lock with it: %w", ref, strings.Join(refs, ", "), kiterr.ErrRefused)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Args)) {
		if have, ok := o.Lock.Args[name]; !ok || have != o.Args[name] {
			return fmt.Errorf("arg %s is not what the lock says: leave it out, or make the lock with it: %w", name, kiterr.ErrRefused)
		}
	}
	o.Kits, o.Args = refs, o.Lock.Args
	return nil
}

// fetchLocked gets exactly what the lock says, if there is one.
func fetchLocked(ctx context.Context, f *fetch.Fetcher, l *sandbox.Lock, ref string, args map[string]string) (*fetch.Kit, error) {
	if l == nil {
		return f.Fetch(ctx, ref, args)
	}
	i := slices.IndexFunc(l.Kits, func(k sandbox.LockedKit) bool { return k.Ref == ref })
	want := l.Kits[i]
	pinned, err := fetch.Pin(ref, digest.Digest(want.Digest), want.Commit)
	if err != nil {
		return nil, err
	}
	kit, err := f.Fetch(ctx, pinned, args)
	if err != nil {
		return nil, err
	}
	kit.Ref = ref
	if kit.Root.String() != want.Digest {
		return nil, fmt.Errorf("kit %s is %s, and the lock says %s: 'kitbox update' shows what is different and changes the lock: %w", ref, kit.Root, want.Digest, kiterr.ErrRefused)
	}
	return kit, nil
}

// holds refuses Kits that ask something else than the lock says. The digests are
// equal, so that only the environment, or another kitbox, can make a difference.
func holds(l *sandbox.Lock, kits []resolve.Kit) error {
	if l == nil {
		return nil
	}
	var locked surface.Surface
	if err := json.Unmarshal(l.Surface, &locked); err != nil {
		return fmt.Errorf("what the lock says that Kits ask: %w: %w", err, kiterr.ErrRefused)
	}
	now := asks(kits)
	if locked.Equal(now) {
		return nil
	}
	var lines []string
	d := surface.Diff(locked, now)
	for _, c := range d.Widenings {
		lines = append(lines, "\n+ "+c.Category+" "+c.Detail)
	}
	for _, c := range d.Narrowings {
		lines = append(lines, "\n- "+c.Category+" "+c.Detail)
	}
	return fmt.Errorf("%w: the Kits ask for something else here than the lock says; a variable given with --env can do that%s", kiterr.ErrRefused, strings.Join(lines, ""))
}

// CompareLocks returns what is different in b, as [sandbox.Locker] says.
func CompareLocks(a, b *sandbox.Lock) (sandbox.LockChanges, error) {
	c := sandbox.LockChanges{Kits: []sandbox.LockChange{}, Widenings: []sandbox.Change{}, Narrowings: []sandbox.Change{}}
	of := func(l *sandbox.Lock, ref string) string {
		for _, k := range l.Kits {
			if k.Ref == ref {
				return k.Digest
			}
		}
		return ""
	}
	for _, k := range b.Kits {
		if from := of(a, k.Ref); from != k.Digest {
			c.Kits = append(c.Kits, sandbox.LockChange{Ref: k.Ref, From: from, To: k.Digest})
		}
	}
	for _, k := range a.Kits {
		if of(b, k.Ref) == "" {
			c.Kits = append(c.Kits, sandbox.LockChange{Ref: k.Ref, From: k.Digest})
		}
	}
	slices.SortFunc(c.Kits, func(x, y sandbox.LockChange) int { return cmp.Compare(x.Ref, y.Ref) })
	var before, after surface.Surface
	if err := json.Unmarshal(a.Surface, &before); err != nil {
		return c, fmt.Errorf("what the lock says that Kits ask: %w", err)
	}
	if err := json.Unmarshal(b.Surface, &after); err != nil {
		return c, fmt.Errorf("what the lock says that Kits ask: %w", err)
	}
	d := surface.Diff(before, after)
	for _, w := range d.Widenings {
		c.Widenings = append(c.Widenings, sandbox.Change{Category: w.Category, Detail: w.Detail})
	}
	for _, n := range d.Narrowings {
		c.Narrowings = append(c.Narrowings, sandbox.Change{Category: n.Category, Detail: n.Detail})
	}
	return c, nil
}
