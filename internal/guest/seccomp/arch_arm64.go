package seccomp

import "golang.org/x/sys/unix"

const (
	archNative = unix.AUDIT_ARCH_AARCH64
	archCompat = unix.AUDIT_ARCH_ARM
)
