package plan

// A Machine is what a driver builds: a root filesystem, mounts, limits and a
// guest as PID 1. A driver needs nothing else and knows nothing else.
type Machine struct {
	ID       string `json:"id"` // unique per home; letters, digits, '-', '_' and '.'
	Hostname string `json:"hostname"`

	// Driver names the driver that builds the machine. Empty is the default.
	Driver string `json:"driver,omitempty"`

	// Layers are absolute directories of the host, lowest first. A driver
	// never writes to them. At least one is required.
	Layers []string `json:"layers"`

	// IDMap shifts ids between the machine and the host. The zero value is
	// the identity, which a driver accepts only when it already runs in a
	// user namespace of its own (rootless).
	IDMap IDMap `json:"idMap"`

	Mounts []Mount `json:"mounts"` // in the order they are laid down

	// Devices are character devices of the host that the machine has beside the
	// usual ones.
	Devices []Device `json:"devices,omitempty"`

	// Files are written into the writable layer before the guest serves:
	// resolv.conf, hosts, hostname.
	Files []BootFile `json:"files"`

	Limits Limits `json:"limits"`

	// Capabilities is the bounding set, as Linux names ("CAP_CHOWN"). Empty
	// means the driver's default set, never all of them.
	Capabilities []string `json:"capabilities,omitempty"`

	// Volatile says that the machine ends with the process that made it, and
	// what is written in it with the machine: after a power cut it is removed,
	// whatever is left of it. A driver need not wait for the disk then, and
	// what syncs a file inside need not either.
	Volatile bool `json:"volatile,omitzero"`
}

// An IDMap maps ids 0..Size-1 of the machine to Base..Base+Size-1 of the host,
// users and groups alike.
type IDMap struct {
	Base uint32 `json:"base"`
	Size uint32 `json:"size"`

	// Swap exchanges root and one user and group of an identity map: machine
	// user Swap.UID is id 0 of the driver's user namespace, which is the user
	// who runs kitbox, and machine root has the number of that user. Zero ids
	// are not exchanged.
	Swap Swap `json:"swap,omitzero"`
}

// A Swap exchanges a user and a group with root.
type Swap struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// IsIdentity reports whether m shifts no range of ids.
func (m IDMap) IsIdentity() bool { return m.Size == 0 }

// Stored returns the ids under which files of machine ids uid and gid are kept on
// disk. It is its own inverse.
func (m IDMap) Stored(uid, gid uint32) (uint32, uint32) {
	if !m.IsIdentity() {
		return uid, gid // mounts shift them
	}
	return m.Swap.user(uid), m.Swap.group(gid)
}

func (s Swap) user(id uint32) uint32  { return exchange(id, s.UID) }
func (s Swap) group(id uint32) uint32 { return exchange(id, s.GID) }

func exchange(id, with uint32) uint32 {
	switch id {
	case 0:
		return with
	case with:
		return 0
	}
	return id
}

// A MountKind is what backs a mount.
type MountKind string

const (
	MountBind  MountKind = "bind"  // a host directory or file
	MountTmpfs MountKind = "tmpfs" // memory
	MountImage MountKind = "image" // a filesystem in a file of the host, which bounds it
)

// A Mount is one filesystem laid over the root.
type Mount struct {
	Kind     MountKind `json:"kind"`
	Path     string    `json:"path"` // absolute in the machine; created when missing
	ReadOnly bool      `json:"readOnly,omitempty"`

	// Source is the host path of a bind or an image. It must exist.
	Source string `json:"source,omitempty"`

	// Owner translates ownership on a bind: files that belong to host id
	// Owner.Host appear as Owner.Machine inside, and files made inside by
	// that id belong to Owner.Host outside. What other ids make belongs to
	// them until the machine has stopped, and then to Owner.Host. Nil shifts
	// all ids as IDMap does, so that machine id n is stored as n on the host.
	Owner *OwnerMap `json:"owner,omitempty"`

	// Covers protect and hide parts of a bind of a directory from whatever
	// runs in the machine, its root too. A driver that cannot refuses them.
	Covers []Cover `json:"covers,omitempty"`

	SizeBytes int64  `json:"sizeBytes,omitempty"` // tmpfs capacity; 0: half of the memory limit or of RAM
	Mode      uint32 `json:"mode,omitempty"`      // mode of a fresh mount root; 0: 0755
	UID       uint32 `json:"uid,omitempty"`       // owner of a tmpfs root, machine id
	GID       uint32 `json:"gid,omitempty"`
}

// A CoverKind is what is done about a path of the host's in a machine.
type CoverKind string

const (
	// CoverHide shows an empty file or directory, which cannot be written,
	// removed or renamed.
	CoverHide CoverKind = "hide"

	// CoverKeep makes a file or a directory read-only. It and every directory
	// on the way to it stay where they are.
	CoverKeep CoverKind = "keep"

	// CoverPin keeps a directory where it is, to be written to as before. A
	// file is kept.
	CoverPin CoverKind = "pin"

	// CoverForbid deletes a file that comes into being while the machine runs.
	CoverForbid CoverKind = "forbid"
)

// A Cover is a rule about names below a bind. It is applied at every start to
// what there is, and while the machine runs to what appears.
type Cover struct {
	// Pattern is a name with '*', '?' and '[...]', looked for at any depth;
	// with a slash, a path below the bind in which "**" stands for any number
	// of directories. A slash at its end makes it match directories only.
	Pattern string    `json:"pattern"`
	Kind    CoverKind `json:"kind"`

	// If is a path below the bind without which the rule does not hold: it is
	// looked for at each start.
	If string `json:"if,omitempty"`

	// Once restricts the rule to what is there at a start, and to what takes
	// its place later.
	Once bool `json:"once,omitempty"`

	// Make is what is made at a start where Pattern, without "**", leads and
	// nothing is: MakeDir or MakeFile, empty and owned as its directory. What
	// is not there cannot be kept.
	Make string `json:"make,omitempty"`
}

// The values of [Cover.Make].
const (
	MakeDir  = "dir"
	MakeFile = "file"
)

// A Device is a character device of the host's that everybody in the machine may
// use, whoever may on the host.
type Device struct {
	Source   string `json:"source"`             // host path of its node, at each start
	Path     string `json:"path"`               // in the machine, below /dev
	ReadOnly bool   `json:"readOnly,omitempty"` // it is not written to

	// Optional lets the machine start without it; a driver reports it in
	// [driver.Machine.Unenforced] then.
	Optional bool `json:"optional,omitempty"`
}

// An OwnerMap ties one host user and group to one machine user and group.
type OwnerMap struct {
	HostUID    uint32 `json:"hostUid"`
	HostGID    uint32 `json:"hostGid"`
	MachineUID uint32 `json:"machineUid"`
	MachineGID uint32 `json:"machineGid"`
}

// A BootFile is a small file of the machine's own, owned by its root.
type BootFile struct {
	Path    string `json:"path"`
	Content string `json:"content"`
	Mode    uint32 `json:"mode"` // permission bits; 0 means 0644

	// Append adds Content at the end of what is there, unless it holds it
	// already, and keeps its mode; links are followed inside the machine.
	Append bool `json:"append,omitempty"`

	// Optional leaves a file that is missing missing.
	Optional bool `json:"optional,omitempty"`

	// Program makes the file the guest's own program, which is for other
	// things by other names, and is there for nobody to find otherwise.
	Program bool `json:"program,omitempty"`

	// Link makes it a symbolic link to Content, unless something is there.
	Link bool `json:"link,omitempty"`

	// Java says that Path is a pattern of key stores of Java, to each of which
	// the certificates of Content are added. What cannot be read, or has a
	// password of its own, stays as it is; the machine's log says so.
	Java bool `json:"java,omitempty"`
}

// Limits bound a machine. Zero means unlimited, except Pids, where it means
// the driver's default.
type Limits struct {
	CPUMillis   int64 `json:"cpuMillis,omitempty"`   // thousandths of a core
	MemoryBytes int64 `json:"memoryBytes,omitempty"` // swap included
	Pids        int64 `json:"pids,omitempty"`
	DiskBytes   int64 `json:"diskBytes,omitempty"` // of the writable layer, from its making on
	// Enforce makes a driver refuse a limit it cannot hold. Otherwise it
	// reports the limit in [driver.Machine.Unenforced] and goes on.
	Enforce bool `json:"enforce,omitempty"`
}
