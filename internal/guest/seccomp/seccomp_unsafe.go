// Package seccomp is the system call filter of a machine: containerd's default
// profile as a table, and the program that the kernel runs of it.
//
// The table is generated and a test pins it to what containerd's own package
// returns, so it is neither written by hand nor fetched at run time, and the
// guest needs neither containerd nor libseccomp. Two rules differ in form:
// the profile's condition on a kernel of at least 4.8 is taken as true, since
// what else a machine needs is younger, and the x32 numbers of amd64 are not
// allowed, since kernels without them are the rule.
package seccomp

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

//go:generate go run gen.go

// An Op compares an argument.
type Op uint8

const (
	Equal  Op = iota // argument == Value
	Less             // argument < Value
	Masked           // argument & Value == Want
)

// An Arg is a condition on one argument of a system call.
type Arg struct {
	Index uint // 0-5
	Op    Op
	Value uint64
	Want  uint64
}

// A Rule allows system calls, or answers them with Errno. Several rules for
// one call are alternatives; what no rule covers is EPERM.
type Rule struct {
	Names []string
	Args  []Arg  // all of them must hold
	Errno uint16 // 0 allows

	With    string // holds only if this capability is in the bounding set
	Without string // holds only if it is not
}

// Profile returns the rules for a machine with the given bounding set, as
// Linux names.
func Profile(caps []string) []Rule {
	var rules []Rule
	for _, r := range profile {
		if r.With != "" && !slices.Contains(caps, r.With) || r.Without != "" && slices.Contains(caps, r.Without) {
			continue
		}
		rules = append(rules, r)
	}
	return rules
}

// nesting returns what runtimes of containers need besides, where root may make some.
func nesting(caps []string) []Rule {
	if !slices.Contains(caps, "CAP_SYS_ADMIN") {
		return nil
	}
	return []Rule{
		{Names: []string{"pivot_root"}},
		// They do without keyrings on a kernel that has none, and take a refusal
		// for a fault.
		{Names: []string{"keyctl"}, Errno: uint16(unix.ENOSYS)},
	}
}

// A Filter is an assembled program.
type Filter struct{ prog []unix.SockFilter }

// New assembles the filter for a machine with the given bounding set.
func New(caps []string) (*Filter, error) {
	prog, err := Assemble(append(Profile(caps), nesting(caps)...))
	if err != nil {
		return nil, err
	}
	return &Filter{prog}, nil
}

// Install puts the filter on every thread of this process, for good. The
// caller has set no_new_privs or has CAP_SYS_ADMIN.
func (f *Filter) Install() error {
	p := unix.SockFprog{Len: uint16(len(f.prog)), Filter: &f.prog[0]}
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&p)))
	runtime.KeepAlive(f)
	if errno != 0 {
		return fmt.Errorf("installing the system call filter: %w", errno)
	}
	if r != 0 {
		return fmt.Errorf("installing the system call filter: thread %d has another one", r)
	}
	return nil
}

// A number is a system call of one architecture.
type number struct {
	name string
	nr   uint32
}
