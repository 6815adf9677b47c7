package engine

import "syscall"

type unixStat = syscall.Stat_t
