package engine

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/gpu"
	"github.com/kitbox-dev/kitbox/internal/handler/resources"
	"github.com/kitbox-dev/kitbox/internal/plan"
)

// capacity is what this machine has.
func capacity(unenforced func(plan.Limits) []string, gpus func() gpu.Found) resources.Host {
	h := resources.Host{CPUMillis: int64(runtime.NumCPU()) * 1000, Unenforced: unenforced, GPUs: gpus}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		h.MemoryBytes = int64(info.Totalram) * int64(info.Unit)
	}
	return h
}
