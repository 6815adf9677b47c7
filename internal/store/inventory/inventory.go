// Package inventory is what a layer holds, as a list: one entry for each path,
// with what tells it apart. From the lists alone it is known which Kits disagree
// about a file, without looking at one.
//
// The lists are made while a layer is unpacked, by package untar, and kept
// beside it by package layer.
package inventory

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
)

// A Kind is what an inventory entry is.
type Kind byte

const (
	File     Kind = 'f'
	Dir      Kind = 'd'
	Symlink  Kind = 'l'
	Fifo     Kind = 'p'
	Whiteout Kind = 'w' // removes what the layers below have at this path
)

// An Entry is one path of a layer.
type Entry struct {
	Path     string // relative, cleaned, without a leading slash; the root is not listed
	Kind     Kind
	Implied  bool   // a directory that the tar does not state
	Opaque   bool   // a directory that hides the content of the layers below
	Mode     uint32 // permission, setuid, setgid and sticky bits
	UID, GID uint32
	Size     int64 // of a file

	// Sum identifies the content of a file, or the target of a symlink,
	// together with the extended attributes. Zero for the other kinds.
	Sum [32]byte
}

// Same reports whether two entries put the same thing at a path: both
// directories, or equal in everything but times.
func (e Entry) Same(o Entry) bool {
	if e.Kind == Dir && o.Kind == Dir {
		return !e.Opaque && !o.Opaque
	}
	return e.Kind == o.Kind && e.Mode == o.Mode && e.UID == o.UID && e.GID == o.GID && e.Size == o.Size && e.Sum == o.Sum
}

// A List is all entries of a layer, sorted by path.
type List []Entry

// Find returns the entry at path.
func (inv List) Find(path string) (Entry, bool) {
	i, ok := slices.BinarySearchFunc(inv, path, func(e Entry, p string) int { return cmp.Compare(e.Path, p) })
	if !ok {
		return Entry{}, false
	}
	return inv[i], true
}

// inventoryMagic names the format; a change of the format changes it, and old
// layers are then reported as damaged and unpacked anew.
const inventoryMagic = "kitbox inventory 1\n"

const (
	flagImplied = 1 << iota
	flagOpaque
	flagSum
)

// Encode returns the stored form. It is flat and binary: reading
// ten lists must not cost what parsing ten JSON documents does.
func (inv List) Encode() []byte {
	b := make([]byte, 0, len(inventoryMagic)+96*len(inv))
	b = append(b, inventoryMagic...)
	b = binary.AppendUvarint(b, uint64(len(inv)))
	for _, e := range inv {
		var flags byte
		if e.Implied {
			flags |= flagImplied
		}
		if e.Opaque {
			flags |= flagOpaque
		}
		if e.Sum != [32]byte{} {
			flags |= flagSum
		}
		b = append(b, byte(e.Kind), flags)
		b = binary.AppendUvarint(b, uint64(e.Mode))
		b = binary.AppendUvarint(b, uint64(e.UID))
		b = binary.AppendUvarint(b, uint64(e.GID))
		b = binary.AppendUvarint(b, uint64(e.Size))
		b = binary.AppendUvarint(b, uint64(len(e.Path)))
		b = append(b, e.Path...)
		if flags&flagSum != 0 {
			b = append(b, e.Sum[:]...)
		}
	}
	return b
}

var errDamaged = errors.New("the inventory cannot be read")

// Decode reads the stored form. It notices damage, and data of another version.
func Decode(data []byte) (List, error) {
	if len(data) < len(inventoryMagic) || string(data[:len(inventoryMagic)]) != inventoryMagic {
		return nil, errDamaged
	}
	// One conversion; every path is a part of this string.
	text, at, bad := string(data), len(inventoryMagic), false
	number := func() uint64 {
		n, w := binary.Uvarint(data[min(at, len(data)):])
		if w <= 0 {
			bad = true
			return 0
		}
		at += w
		return n
	}
	count := number()
	if bad || count > uint64(len(data)) {
		return nil, errDamaged
	}
	inv := make(List, 0, count)
	for range count {
		if at+2 > len(data) {
			return nil, errDamaged
		}
		e := Entry{Kind: Kind(data[at])}
		flags := data[at+1]
		at += 2
		e.Implied, e.Opaque = flags&flagImplied != 0, flags&flagOpaque != 0
		e.Mode, e.UID, e.GID, e.Size = uint32(number()), uint32(number()), uint32(number()), int64(number())
		n := number()
		if bad || n > uint64(len(data)-at) {
			return nil, errDamaged
		}
		e.Path = text[at : at+int(n)]
		at += int(n)
		if flags&flagSum != 0 {
			if len(data)-at < len(e.Sum) {
				return nil, errDamaged
			}
			copy(e.Sum[:], data[at:])
			at += len(e.Sum)
		}
		inv = append(inv, e)
	}
	if at != len(data) {
		return nil, errDamaged
	}
	return inv, nil
}
