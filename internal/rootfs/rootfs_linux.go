package rootfs

import "syscall"

type unixStat = syscall.Stat_t
