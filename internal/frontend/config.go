package frontend

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/moby/buildkit/util/system"
	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kitbox-dev/kitbox/assemble"
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
	argv := slices.Concat(c.Config.Entrypoint, c.Config.Cmd)
	return len(argv) > 0 && argv[0] != ""
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
	c.Config = dockerspec.DockerOCIImageConfig{ImageConfig: assemble.Delta(base.Config.ImageConfig, c.Config.ImageConfig)}
	return c
}
