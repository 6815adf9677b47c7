package seccomp

import "golang.org/x/sys/unix"

const (
	archNative = unix.AUDIT_ARCH_X86_64
	archCompat = unix.AUDIT_ARCH_I386
)
