package app

import (
	"os"
	"path/filepath"

	"github.com/kitbox-dev/kitbox/internal/driver/device"
	"github.com/kitbox-dev/kitbox/internal/gpu"
)

// specsVariable names the directories of CDI specifications, for hosts that keep them
// elsewhere than in /etc/cdi and /var/run/cdi. It is the operator's: nothing of a Kit
// or of a sandbox is in the environment of kitbox.
const specsVariable = "KITBOX_CDI_DIRS"

// gpus are those that sandboxes here can be given.
func gpus() gpu.Found {
	h := gpu.Host{Usable: device.Usable}
	if dirs := os.Getenv(specsVariable); dirs != "" {
		h.SpecDirs = filepath.SplitList(dirs)
	}
	return h.Find()
}
