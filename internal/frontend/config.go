package frontend

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/moby/buildkit/util/system"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// An imageConfig is the config document of one image.
type imageConfig struct{ dockerspec.DockerOCIImage }

func parseConfig(b []byte) (imageConfig, error) {
	var c imageConfig
	if err := json.Unmarshal(b, &c.DockerOCIImage); err != nil {
		return c, fmt.Errorf("the recipe's image config: %w", err)
	}
	return c, nil
}

func (c imageConfig) encode() ([]byte, error) { return json.Marshal(c.DockerOCIImage) }

// launches reports whether a container of the image has something to run.
func (c imageConfig) launches() bool {
	return len(c.Config.Entrypoint) > 0 || len(c.Config.Cmd) > 0
}

// note adds a history entry for a layer of ours.
func (c *imageConfig) note(by string) {
	epoch := time.Unix(0, 0).UTC()
	c.History = append(c.History, ocispec.History{Created: &epoch, CreatedBy: by, Comment: "kitbox"})
}

// scratchConfig is what the Dockerfile frontend gives an image that starts from
// nothing.
func scratchConfig() imageConfig {
	var c imageConfig
	c.Config.Env = []string{"PATH=" + system.DefaultPathEnvUnix}
	c.Config.WorkingDir = "/"
	return c
}

// delta returns c with only what its recipe stated over base (§10). A mixin
// lands on bases other than its own, and must not carry its own base's
// environment there.
func (c imageConfig) delta(base imageConfig) imageConfig {
	d := c
	now, was := c.Config, base.Config
	out := dockerspec.DockerOCIImageConfig{
		ImageConfig: ocispec.ImageConfig{
			Env:          envDelta(now.Env, was.Env),
			Labels:       mapDelta(now.Labels, was.Labels),
			ExposedPorts: setDelta(now.ExposedPorts, was.ExposedPorts),
			Volumes:      setDelta(now.Volumes, was.Volumes),
		},
	}
	if now.User != was.User {
		out.User = now.User
	}
	if now.WorkingDir != was.WorkingDir {
		out.WorkingDir = now.WorkingDir
	}
	if !slices.Equal(now.Entrypoint, was.Entrypoint) {
		out.Entrypoint = now.Entrypoint
	}
	if !slices.Equal(now.Cmd, was.Cmd) {
		out.Cmd = now.Cmd
	}
	if now.StopSignal != was.StopSignal {
		out.StopSignal = now.StopSignal
	}
	if !reflect.DeepEqual(now.Healthcheck, was.Healthcheck) {
		out.Healthcheck = now.Healthcheck
	}
	if !slices.Equal(now.Shell, was.Shell) {
		out.Shell = now.Shell
	}
	if !slices.Equal(now.OnBuild, was.OnBuild) {
		out.OnBuild = now.OnBuild
	}
	d.Config = out
	return d
}

// envDelta returns the variables that are new or changed. Of PATH, only the
// elements that were added, each once: composing appends them.
func envDelta(now, was []string) []string {
	old := map[string]string{}
	for _, e := range was {
		name, v, _ := strings.Cut(e, "=")
		old[name] = v
	}
	var out []string
	for _, e := range now {
		name, v, _ := strings.Cut(e, "=")
		before, had := old[name]
		if had && before == v {
			continue
		}
		if name == "PATH" {
			seen := map[string]bool{}
			for _, p := range strings.Split(before, ":") {
				seen[p] = true
			}
			var added []string
			for _, p := range strings.Split(v, ":") {
				if p != "" && !seen[p] {
					seen[p] = true
					added = append(added, p)
				}
			}
			if len(added) > 0 {
				out = append(out, "PATH="+strings.Join(added, ":"))
			}
			continue
		}
		out = append(out, e)
	}
	return out
}

func mapDelta(now, was map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range now {
		if before, had := was[k]; !had || before != v {
			out[k] = v
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func setDelta(now, was map[string]struct{}) map[string]struct{} {
	out := map[string]struct{}{}
	for k := range now {
		if _, had := was[k]; !had {
			out[k] = struct{}{}
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
