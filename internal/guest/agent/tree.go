package agent

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kitbox-dev/kitbox/internal/guest/protocol"
)

// A process is one line of /proc.
type process struct {
	pid, parent, session int
	zombie               bool
}

// processes lists all processes of the machine.
func processes() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var ps []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		// The command is in brackets and may contain anything, brackets too.
		i := bytes.LastIndexByte(stat, ')')
		if i < 0 {
			continue
		}
		f := bytes.Fields(stat[i+1:])
		if len(f) < 4 {
			continue
		}
		parent, _ := strconv.Atoi(string(f[1]))
		session, _ := strconv.Atoi(string(f[3]))
		ps = append(ps, process{pid, parent, session, f[0][0] == 'Z' || f[0][0] == 'X'})
	}
	return ps
}

// countProcesses counts the processes of the machine that have not ended.
func countProcesses() int {
	n := 0
	for _, p := range processes() {
		if !p.zombie {
			n++
		}
	}
	return n
}

// family returns those of ps that are in session root or descend from a
// member of it. A process that left the session and whose parents all ended
// is a daemon and belongs to nobody but the machine.
func family(ps []process, root int) []int {
	in := map[int]bool{root: true}
	for grew := true; grew; {
		grew = false
		for _, p := range ps {
			if !in[p.pid] && (p.session == root || in[p.parent]) {
				in[p.pid] = true
				grew = true
			}
		}
	}
	var pids []int
	for _, p := range ps {
		if in[p.pid] && !p.zombie && p.pid != 1 {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// orphans returns what is left of session root after root ended. The kernel
// gives root's number to nobody while its session has a member, so a process
// with that pid means that the session is another one.
func orphans(ps []process, root int) []int {
	var pids []int
	for _, p := range ps {
		if p.pid == root {
			return nil
		}
		if p.session == root && !p.zombie {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// endFamily ends command root, which was given done, with all its processes:
// SIGHUP and SIGTERM, then after the grace SIGKILL.
func (a *Agent) endFamily(root int, done <-chan protocol.Exit) {
	// While the reaper rests, no pid of a child of ours changes its meaning.
	a.reaper.mu.Lock()
	ps := processes()
	var held handles
	if a.reaper.running(root, done) {
		held = hold(family(ps, root))
	} else {
		held = hold(orphans(ps, root))
	}
	a.reaper.mu.Unlock()
	defer func() { held.close() }()

	held.signal(unix.SIGHUP)
	held.signal(unix.SIGTERM)
	held.signal(unix.SIGCONT)
	if held.wait(a.grace()) {
		return
	}
	// What a member forked meanwhile is found again through those alive.
	for range 10 {
		var next handles
		a.reaper.mu.Lock()
		alive := held.alive()
		seen := map[int]bool{}
		ps := processes()
		for _, pid := range alive {
			for _, p := range family(ps, pid) {
				if !seen[p] {
					seen[p] = true
					next = append(next, hold([]int{p})...)
				}
			}
		}
		a.reaper.mu.Unlock()
		held.close()
		held = next
		if len(held) == 0 {
			return
		}
		held.signal(unix.SIGKILL)
		if held.wait(time.Second) {
			return
		}
	}
}

// endAll ends every process but this one.
func (a *Agent) endAll(grace time.Duration) {
	a.mu.Lock()
	for session := range a.terms {
		// A shell at a terminal ignores SIGTERM, and its terminal is closing.
		unix.Kill(-session, unix.SIGHUP)
	}
	a.mu.Unlock()
	unix.Kill(-1, unix.SIGTERM)
	unix.Kill(-1, unix.SIGCONT)

	r := &a.reaper
	wake := time.AfterFunc(grace, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.gone.Broadcast()
	})
	defer wake.Stop()
	end := time.Now().Add(grace)
	r.round() // learn whether there are any
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.none {
		if !time.Now().Before(end) {
			// Again after each death: a process may have been forking.
			unix.Kill(-1, unix.SIGKILL)
		}
		r.gone.Wait()
	}
}

// A handle is a process that cannot be mistaken for a later one with its pid.
type handle struct{ pid, fd int }

type handles []handle

// hold opens a handle on each pid that still exists.
func hold(pids []int) handles {
	var hs handles
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			hs = append(hs, handle{pid, fd})
		}
	}
	return hs
}

func (hs handles) close() {
	for _, h := range hs {
		unix.Close(h.fd)
	}
}

func (hs handles) signal(s unix.Signal) {
	for _, h := range hs {
		unix.PidfdSendSignal(h.fd, s, nil, 0)
	}
}

// alive returns the pids of those that have not ended.
func (hs handles) alive() []int {
	var pids []int
	for _, h := range hs {
		if !ended(h.fd, 0) {
			pids = append(pids, h.pid)
		}
	}
	return pids
}

// wait reports whether all ended within d.
func (hs handles) wait(d time.Duration) bool {
	end := time.Now().Add(d)
	for _, h := range hs {
		if !ended(h.fd, time.Until(end)) {
			return false
		}
	}
	return true
}

// ended waits up to d for the process of a pidfd to end.
func ended(fd int, d time.Duration) bool {
	end := time.Now().Add(d)
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, int(max(time.Until(end), 0)/time.Millisecond))
		if err != unix.EINTR {
			return err == nil && n == 1
		}
	}
}
