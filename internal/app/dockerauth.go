package app

import (
	"context"
	"path/filepath"

	"github.com/kitbox-dev/kitbox/fetch"
	"github.com/kitbox-dev/kitbox/internal/boundary/audit"
	"github.com/kitbox-dev/kitbox/internal/boundary/dockerauth"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// dockerConfig is the directory that docker itself would read.
func dockerConfig(getenv func(string) string) string {
	dir := getenv("DOCKER_CONFIG")
	if dir == "" {
		dir = filepath.Join(getenv("HOME"), ".docker")
	}
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

// presentable reports whether there is a login for registry that the boundary can
// present.
func presentable(ctx context.Context, dir, registry string) error {
	if _, err := dockerauth.Places(registry); err != nil {
		return err
	}
	_, err := fetch.FindLogin(ctx, dir, registry)
	return err
}

// challengesFile remembers what registries asked for, in a sandbox's directory.
const challengesFile = "registries.json"

// logins presents the registry logins of p, whose directory is dir; nil when it
// has none.
func logins(p *plan.Plan, dir string, log func(...audit.Decision)) (*dockerauth.Presenter, error) {
	if len(p.DockerAuth) == 0 {
		return nil, nil
	}
	return dockerauth.New(p.DockerAuth, new(keyring).Login, filepath.Join(dir, challengesFile), func(d audit.Decision) {
		d.Sandbox = p.Name
		log(d)
	})
}

// shownLogins is [engine.Config.Logins], by what the boundary has written down.
func shownLogins(p *plan.Plan, dir, host string, port uint16) ([]string, error) {
	docker, err := logins(p, dir, func(...audit.Decision) {})
	if err != nil || docker == nil {
		return nil, err
	}
	return docker.Shown(host, port), nil
}
