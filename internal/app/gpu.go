package app

import (
	"os"
	"path/filepath"

	"github.com/kitbox-dev/kitbox/internal/driver/device"
	"github.com/kitbox-dev/kitbox/internal/gpu"
	"github.com/kitbox-dev/kitbox/internal/workspace"
)

// specsVariable names the directories of CDI specifications, for hosts that keep them
// elsewhere than in /etc/cdi and /var/run/cdi. It is the operator's: nothing of a Kit
// or of a sandbox is in the environment of kitbox.
const specsVariable = "KITBOX_CDI_DIRS"

// gpus are those that sandboxes of home can be given.
func gpus(home string) gpu.Found {
	h := gpu.Host{Usable: device.Usable, Mountable: workspace.Host{Home: home}.Harmless}
	if dirs := os.Getenv(specsVariable); dirs != "" {
		h.SpecDirs = filepath.SplitList(dirs)
	}
	return h.Find()
}
