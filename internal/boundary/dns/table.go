package dns

import (
	"container/list"
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/kitbox-dev/kitbox/internal/boundary/egress"
)

// The addresses that the boundary gives out. They are the same in every
// sandbox, since no packet with one leaves its two namespaces. The first 256
// of each range belong to the boundary itself.
var (
	Range4 = netip.MustParsePrefix("198.18.0.0/15")            // for benchmarks, so nobody's
	Range6 = netip.MustParsePrefix("fd6b:6974:626f:7800::/96") // "kitbox" in a unique local prefix
)

const (
	firstIndex = 256
	lastIndex  = 1<<17 - 2 // the last of Range4 but the broadcast address
)

// An Entry is one name and its place in the two ranges. The JSON form is what
// a keeper stores.
type Entry struct {
	Name  string `json:"name"`
	Index uint32 `json:"index"`
}

// Addr4 returns the IPv4 address of the entry.
func (e Entry) Addr4() netip.Addr { return addr4(e.Index) }

// Addr6 returns the IPv6 address of the entry.
func (e Entry) Addr6() netip.Addr { return addr6(e.Index) }

func addr4(i uint32) netip.Addr {
	b := Range4.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+i)
	return netip.AddrFrom4(b)
}

func addr6(i uint32) netip.Addr {
	b := Range6.Addr().As16()
	binary.BigEndian.PutUint32(b[12:], i)
	return netip.AddrFrom16(b)
}

// indexOf returns the place of a synthetic address, and whether a is one.
func indexOf(a netip.Addr) (uint32, bool) {
	switch a = a.Unmap(); {
	case Range4.Contains(a):
		b, base := a.As4(), Range4.Addr().As4()
		return binary.BigEndian.Uint32(b[:]) - binary.BigEndian.Uint32(base[:]), true
	case Range6.Contains(a):
		b := a.As16()
		return binary.BigEndian.Uint32(b[12:]), true
	}
	return 0, false
}

// Synthetic reports whether a is in one of the ranges, given out or not.
func Synthetic(a netip.Addr) bool { _, ok := indexOf(a); return ok }

// A Table gives each name of one sandbox an address of its own, so that a
// destination always says which name was asked for. An address stays with its
// name for as long as the table exists, unless the table is full and the name
// is the one that was idle longest. It is safe for concurrent use.
type Table struct {
	max     int
	assigns func(Entry)
	fixed   []Entry // names of the boundary itself; set before use

	mu      sync.Mutex
	byName  map[string]*list.Element // of *slot; guarded by mu
	byIndex map[uint32]*list.Element // guarded by mu
	used    *list.List               // most recently used in front; guarded by mu
	next    uint32                   // guarded by mu
}

type slot struct {
	Entry
	last time.Time
}

// keep is how long an idle name is sure of its address in a full table. It is
// well over the TTL, so an address is never given to another name while a
// client may still hold it.
const keep = 5 * ttl * time.Second

// NewTable returns an empty table for at most max names; zero means 16384.
// assigns, if not nil, is told of each new entry before it is first used, and
// must not call back.
func NewTable(max int, assigns func(Entry)) *Table {
	if max <= 0 {
		max = 16384
	}
	return &Table{
		max: min(max, lastIndex-firstIndex+1), assigns: assigns,
		byName: map[string]*list.Element{}, byIndex: map[uint32]*list.Element{},
		used: list.New(), next: firstIndex,
	}
}

// Reserve gives a name of the boundary itself a place below the first that is
// given out, for good. Call it before the table is used.
func (t *Table) Reserve(e Entry) { t.fixed = append(t.fixed, e) }

// Assign returns the entry of name, making it if need be, or false when the
// table is full of names in use. name is in its one spelling.
func (t *Table) Assign(name string) (Entry, bool) {
	for _, e := range t.fixed {
		if e.Name == name {
			return e, true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if el := t.byName[name]; el != nil {
		t.touch(el, now)
		return el.Value.(*slot).Entry, true
	}
	index := t.free()
	if len(t.byName) >= t.max {
		el := t.used.Back()
		old := el.Value.(*slot)
		if now.Sub(old.last) < keep {
			return Entry{}, false
		}
		t.used.Remove(el)
		delete(t.byName, old.Name)
		delete(t.byIndex, old.Index)
		index = old.Index
	}
	s := &slot{Entry: Entry{Name: name, Index: index}, last: now}
	t.insert(s)
	if t.assigns != nil {
		t.assigns(s.Entry)
	}
	return s.Entry, true
}

// free returns a place that nobody has; t.mu is held. There always is one that
// matters: a full table takes the place of the name it evicts.
func (t *Table) free() uint32 {
	for t.next <= lastIndex && t.byIndex[t.next] != nil {
		t.next++
	}
	if t.next <= lastIndex {
		return t.next
	}
	for i := uint32(firstIndex); i <= lastIndex; i++ {
		if t.byIndex[i] == nil {
			return i
		}
	}
	return 0
}

// insert adds s in front; t.mu is held.
func (t *Table) insert(s *slot) {
	el := t.used.PushFront(s)
	t.byName[s.Name] = el
	t.byIndex[s.Index] = el
}

func (t *Table) touch(el *list.Element, now time.Time) {
	el.Value.(*slot).last = now
	t.used.MoveToFront(el)
}

// Name returns the name that address a stands for. ok is false when a is not
// synthetic or was never given out.
func (t *Table) Name(a netip.Addr) (name string, ok bool) {
	i, ok := indexOf(a)
	if !ok {
		return "", false
	}
	for _, e := range t.fixed {
		if e.Index == i {
			return e.Name, true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	el := t.byIndex[i]
	if el == nil {
		return "", false
	}
	t.touch(el, time.Now())
	return el.Value.(*slot).Name, true
}

// Snapshot returns all entries, those used last at the end, for [Table.Restore].
func (t *Table) Snapshot() []Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	es := make([]Entry, 0, t.used.Len())
	for el := t.used.Back(); el != nil; el = el.Prev() {
		es = append(es, el.Value.(*slot).Entry)
	}
	return es
}

// Restore fills an empty table with entries of an earlier one; where two claim
// a name or a place, the later counts, and of more than fit the last are kept.
// On error the table is as it was.
func (t *Table) Restore(es []Entry) error {
	for _, e := range es {
		if h, err := egress.ParseHost(e.Name); err != nil || h.Name != e.Name || e.Index < firstIndex || e.Index > lastIndex {
			return fmt.Errorf("synthetic address table: entry %q at %d is not valid", e.Name, e.Index)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used.Len() > 0 {
		return fmt.Errorf("synthetic address table: not empty")
	}
	now := time.Now()
	for _, e := range es[max(0, len(es)-t.max):] {
		for _, el := range []*list.Element{t.byName[e.Name], t.byIndex[e.Index]} {
			if el == nil {
				continue
			}
			if old := el.Value.(*slot); t.byIndex[old.Index] == el {
				t.used.Remove(el)
				delete(t.byName, old.Name)
				delete(t.byIndex, old.Index)
			}
		}
		t.insert(&slot{Entry: e, last: now})
	}
	return nil
}
