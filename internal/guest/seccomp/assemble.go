package seccomp

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Actions of the kernel's filter interface.
const (
	allow = unix.SECCOMP_RET_ALLOW
	kill  = unix.SECCOMP_RET_KILL_PROCESS
	deny  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
)

// Offsets in struct seccomp_data.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

// Assemble returns the filter program of rules for this architecture.
//
// The numbers are searched in halves, not one after the other: a call costs
// about eight steps instead of up to three hundred.
func Assemble(rules []Rule) ([]unix.SockFilter, error) {
	first, err := section(rules, native)
	if err != nil {
		return nil, err
	}
	second, err := section(rules, compat)
	if err != nil {
		return nil, err
	}
	prog := []unix.SockFilter{
		load(offsetArch),
		jump(unix.BPF_JEQ, archNative, 1, 0),
		always(uint32(len(first) + 1)), // to the other interface
	}
	prog = append(prog, load(offsetNumber))
	prog = append(prog, first...)
	prog = append(prog,
		jump(unix.BPF_JEQ, archCompat, 1, 0),
		ret(kill), // a number whose meaning is unknown
		load(offsetNumber))
	prog = append(prog, second...)
	if len(prog) > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("filter of %d instructions", len(prog))
	}
	return prog, nil
}

// A span is a run of numbers, up to the next span, that are treated alike.
type span struct {
	from uint32
	code []unix.SockFilter
	plain
}

type plain struct {
	is     bool
	action uint32
}

// section returns the program for one table of numbers. The number is loaded.
func section(rules []Rule, table []number) ([]unix.SockFilter, error) {
	byName := make(map[string]uint32, len(table))
	for _, n := range table {
		byName[n.name] = n.nr
	}
	byNumber := map[uint32][]Rule{}
	for _, r := range rules {
		for _, name := range r.Names {
			// A name of another architecture has no number here.
			if nr, ok := byName[name]; ok {
				byNumber[nr] = append(byNumber[nr], r)
			}
		}
	}
	numbers := make([]uint32, 0, len(byNumber))
	for nr := range byNumber {
		numbers = append(numbers, nr)
	}
	slices.Sort(numbers)

	spans := []span{{from: 0, code: []unix.SockFilter{ret(deny)}, plain: plain{true, deny}}}
	add := func(s span) {
		last := &spans[len(spans)-1]
		switch {
		case last.from == s.from:
			*last = s
		case last.is && s.is && last.action == s.action:
			return
		default:
			spans = append(spans, s)
		}
	}
	for _, nr := range numbers {
		code, action, isPlain, err := decide(byNumber[nr])
		if err != nil {
			return nil, fmt.Errorf("system call %d: %w", nr, err)
		}
		add(span{nr, code, plain{isPlain, action}})
		add(span{nr + 1, []unix.SockFilter{ret(deny)}, plain{true, deny}})
	}
	return search(spans), nil
}

// search returns a program that finds the span of the loaded number.
func search(spans []span) []unix.SockFilter {
	if len(spans) == 1 {
		return spans[0].code
	}
	mid := len(spans) / 2
	low, high := search(spans[:mid]), search(spans[mid:])
	var code []unix.SockFilter
	if len(low) <= 255 {
		code = append(code, jump(unix.BPF_JGE, spans[mid].from, uint8(len(low)), 0))
	} else {
		code = append(code, jump(unix.BPF_JGE, spans[mid].from, 0, 1), always(uint32(len(low))))
	}
	return append(append(code, low...), high...)
}

// decide returns the program of one system call. It is plain when it depends on
// nothing but the number.
func decide(rules []Rule) (code []unix.SockFilter, action uint32, isPlain bool, err error) {
	for _, r := range rules {
		action := uint32(allow)
		if r.Errno != 0 {
			action = unix.SECCOMP_RET_ERRNO | uint32(r.Errno)
		}
		if len(r.Args) == 0 {
			if len(code) == 0 {
				return []unix.SockFilter{ret(action)}, action, true, nil
			}
			return append(code, ret(action)), 0, false, nil
		}
		one, err := condition(r.Args, action)
		if err != nil {
			return nil, 0, false, err
		}
		code = append(code, one...)
	}
	return append(code, ret(deny)), 0, false, nil
}

// condition returns a program that ends with action if all args hold and falls
// through otherwise.
func condition(args []Arg, action uint32) ([]unix.SockFilter, error) {
	// Built from the end, so that each test knows how far it is to the exit.
	code := []unix.SockFilter{ret(action)}
	for _, a := range slices.Backward(args) {
		out := func(after int) uint8 { return uint8(after + len(code)) }
		if len(code) > 200 || a.Index > 5 {
			return nil, fmt.Errorf("condition %+v does not fit", a)
		}
		low := uint32(offsetArgs + 8*a.Index) // little endian: amd64 and arm64
		high := low + 4
		vh, vl := uint32(a.Value>>32), uint32(a.Value)
		var test []unix.SockFilter
		switch a.Op {
		case Equal:
			test = []unix.SockFilter{
				load(high), jump(unix.BPF_JEQ, vh, 0, out(2)),
				load(low), jump(unix.BPF_JEQ, vl, 0, out(0)),
			}
		case Less:
			test = []unix.SockFilter{
				load(high),
				jump(unix.BPF_JGT, vh, out(3), 0), // greater: no
				jump(unix.BPF_JEQ, vh, 0, 2),      // less: yes
				load(low),
				jump(unix.BPF_JGE, vl, out(0), 0),
			}
		case Masked:
			test = []unix.SockFilter{
				load(high), and(vh), jump(unix.BPF_JEQ, uint32(a.Want>>32), 0, out(3)),
				load(low), and(vl), jump(unix.BPF_JEQ, uint32(a.Want), 0, out(0)),
			}
		default:
			return nil, fmt.Errorf("comparison %d is unknown", a.Op)
		}
		code = append(test, code...)
	}
	return code, nil
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func and(k uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: k}
}

func jump(op uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, Jt: yes, Jf: no, K: k}
}

func always(n uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: n}
}

func ret(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}
