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

	// Files are written into the writable layer before the guest serves:
	// resolv.conf, hosts, hostname.
	Files []BootFile `json:"files"`

	Limits Limits `json:"limits"`

	// Capabilities is the bounding set, as Linux names ("CAP_CHOWN"). Empty
	// means the driver's default set, never all of them.
	Capabilities []string `json:"capabilities,omitempty"`
}

// An IDMap maps ids 0..Size-1 of the machine to Base..Base+Size-1 of the host,
// users and groups alike.
type IDMap struct {
	Base uint32 `json:"base"`
	Size uint32 `json:"size"`
}

// IsIdentity reports whether m shifts nothing.
func (m IDMap) IsIdentity() bool { return m.Size == 0 }

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
	// that id belong to Owner.Host outside. Nil shifts all ids as IDMap
	// does, so that machine id n is stored as n on the host.
	Owner *OwnerMap `json:"owner,omitempty"`

	SizeBytes int64  `json:"sizeBytes,omitempty"` // tmpfs capacity; 0: half of the memory limit or of RAM
	Mode      uint32 `json:"mode,omitempty"`      // mode of a fresh mount root; 0: 0755
	UID       uint32 `json:"uid,omitempty"`       // owner of a tmpfs root, machine id
	GID       uint32 `json:"gid,omitempty"`
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

	// Optional leaves a file that is missing missing. A driver that cannot
	// append may leave it as it is, too.
	Optional bool `json:"optional,omitempty"`
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
