package frontend

import (
	"context"
	"fmt"
	"slices"

	"github.com/moby/buildkit/frontend/gateway/client"

	"github.com/kitbox-dev/kitbox/resolve/packages"
	"github.com/kitbox-dev/kitbox/spec"
)

// derive adds the packages of a workload's image to what it provides (§9.6).
func (k *kit) derive(ctx context.Context, platforms []platform) error {
	if k.published.Kind != spec.KindWorkload {
		return nil
	}
	var have []packages.Database
	for _, p := range platforms {
		dpkg, err := database(ctx, p.ref, packages.DpkgStatus)
		if err != nil {
			return err
		}
		apk, err := database(ctx, p.ref, packages.ApkInstalled)
		if err != nil {
			return err
		}
		have = append(have, packages.Database{Dpkg: dpkg, Apk: apk})
	}
	k.published.Provides = append(slices.Clip(k.published.Provides), packages.Derive(have)...)
	return nil
}

// database reads a file that need not be there.
func database(ctx context.Context, ref client.Reference, name string) (string, error) {
	data, err := readFile(ctx, ref, name)
	if err != nil && !isNotExist(err) {
		return "", fmt.Errorf("reading the image's package database %s: %w", name, err)
	}
	return string(data), nil
}
