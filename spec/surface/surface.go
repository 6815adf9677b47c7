// Package surface is the permission surface (§7.4): what a descriptor or a set
// of Kits asks of its host, as sorted lists that can be shown, digested, stored
// as what was granted, and compared with what a candidate asks.
//
// Which lines an entry contributes is for the package of its type to say. How a
// grant is enforced is no matter of the surface.
package surface

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
	"github.com/kitbox-dev/kitbox/spec"
)

// A Surface holds sorted lists without repeats. The zero value asks for
// nothing. Fields are in the order of their JSON names, which makes the
// encoding canonical.
type Surface struct {
	CredentialsInstall      []string `json:"credentialsInstall,omitzero"`
	CredentialsRuntime      []string `json:"credentialsRuntime,omitzero"`
	DockerAuth              []string `json:"dockerAuth,omitzero"` // registries
	HostMountPaths          []string `json:"hostMountPaths,omitzero"`
	HostPorts               []string `json:"hostPorts,omitzero"` // tcp4/5432
	NetworkInstallAllow     []string `json:"networkInstallAllow,omitzero"`
	NetworkInstallDeny      []string `json:"networkInstallDeny,omitzero"`
	NetworkInstallHTTPAllow []string `json:"networkInstallHTTPAllow,omitzero"` // METHOD host/path
	NetworkInstallHTTPDeny  []string `json:"networkInstallHTTPDeny,omitzero"`
	NetworkRuntimeAllow     []string `json:"networkRuntimeAllow,omitzero"`
	NetworkRuntimeDeny      []string `json:"networkRuntimeDeny,omitzero"`
	NetworkRuntimeHTTPAllow []string `json:"networkRuntimeHTTPAllow,omitzero"`
	NetworkRuntimeHTTPDeny  []string `json:"networkRuntimeHTTPDeny,omitzero"`
	Ports                   []string `json:"ports,omitzero"` // 80/tcp
	Privileged              bool     `json:"privileged,omitzero"`
	Services                []string `json:"services,omitzero"` // types, with a digest of their config if they have one
	SkillsPaths             []string `json:"skillsPaths,omitzero"`
	SkillsWritePaths        []string `json:"skillsWritePaths,omitzero"`
	SSHAgentInstall         []string `json:"sshAgentInstall,omitzero"` // unrestricted, sign NAMESPACE, authenticate [USER@]HOST
	SSHAgentRuntime         []string `json:"sshAgentRuntime,omitzero"`
	StoragePaths            []string `json:"storagePaths,omitzero"`
	USBDevices              []string `json:"usbDevices,omitzero"`

	// kits says who asked, for attribution; it is not part of the surface.
	kits map[capability.Line][]string
}

// list returns the list of a name, nil for privileged and unknown ones.
func (s *Surface) list(name string) *[]string {
	switch name {
	case capability.ListCredentialsInstall:
		return &s.CredentialsInstall
	case capability.ListCredentialsRuntime:
		return &s.CredentialsRuntime
	case capability.ListDockerAuth:
		return &s.DockerAuth
	case capability.ListHostMountPaths:
		return &s.HostMountPaths
	case capability.ListHostPorts:
		return &s.HostPorts
	case capability.ListNetworkInstallAllow:
		return &s.NetworkInstallAllow
	case capability.ListNetworkInstallDeny:
		return &s.NetworkInstallDeny
	case capability.ListNetworkInstallHTTPAllow:
		return &s.NetworkInstallHTTPAllow
	case capability.ListNetworkInstallHTTPDeny:
		return &s.NetworkInstallHTTPDeny
	case capability.ListNetworkRuntimeAllow:
		return &s.NetworkRuntimeAllow
	case capability.ListNetworkRuntimeDeny:
		return &s.NetworkRuntimeDeny
	case capability.ListNetworkRuntimeHTTPAllow:
		return &s.NetworkRuntimeHTTPAllow
	case capability.ListNetworkRuntimeHTTPDeny:
		return &s.NetworkRuntimeHTTPDeny
	case capability.ListPorts:
		return &s.Ports
	case capability.ListServices:
		return &s.Services
	case capability.ListSkillsPaths:
		return &s.SkillsPaths
	case capability.ListSkillsWritePaths:
		return &s.SkillsWritePaths
	case capability.ListSSHAgentInstall:
		return &s.SSHAgentInstall
	case capability.ListSSHAgentRuntime:
		return &s.SSHAgentRuntime
	case capability.ListStoragePaths:
		return &s.StoragePaths
	case capability.ListUSBDevices:
		return &s.USBDevices
	}
	return nil
}

// lists names every list, in the order in which changes are reported.
var lists = [...]string{
	capability.ListNetworkInstallAllow, capability.ListNetworkInstallDeny,
	capability.ListNetworkInstallHTTPAllow, capability.ListNetworkInstallHTTPDeny,
	capability.ListNetworkRuntimeAllow, capability.ListNetworkRuntimeDeny,
	capability.ListNetworkRuntimeHTTPAllow, capability.ListNetworkRuntimeHTTPDeny,
	capability.ListCredentialsInstall, capability.ListCredentialsRuntime,
	capability.ListSSHAgentInstall, capability.ListSSHAgentRuntime,
	capability.ListStoragePaths, capability.ListHostMountPaths,
	capability.ListSkillsPaths, capability.ListSkillsWritePaths,
	capability.ListPorts, capability.ListHostPorts, capability.ListDockerAuth, capability.ListUSBDevices,
	capability.ListServices,
}

// Project returns the surface of requests. Optional ones count like required
// ones, and the members of a group whether or not it will be selected. Types
// that nobody knows, and known ones whose config cannot be read, are services:
// the type and a digest of the config, so that any change shows.
func Project(rs []capability.Request) Surface {
	var s Surface
	var in capability.Inspection
	for i := range rs {
		s.add(linesOf(rs[i], &in))
	}
	s.normalize()
	return s
}

// ProjectKits is [Project] of what Kits ask, keeping who asked what, so that
// [Diff] can say it. Contributions that were merged count for all their Kits.
func ProjectKits(cs []capability.Contribution) Surface {
	s := Surface{kits: map[capability.Line][]string{}}
	var in capability.Inspection
	for _, c := range cs {
		s.add(linesOf(c.Request, &in))
		parts := c.From
		if parts == nil {
			parts = []capability.Contribution{c}
		}
		for _, p := range parts {
			for _, l := range linesOf(p.Request, &in) {
				if !slices.Contains(s.kits[l], p.Kit) {
					s.kits[l] = append(s.kits[l], p.Kit)
				}
			}
		}
	}
	s.normalize()
	return s
}

// FromLines returns the surface of lines, as [spec.Document.Judge] gives them.
func FromLines(lines []capability.Line) Surface {
	var s Surface
	s.add(lines)
	s.normalize()
	return s
}

func (s *Surface) add(lines []capability.Line) {
	for _, l := range lines {
		if l.List == capability.ListPrivileged {
			s.Privileged = true
		} else if list := s.list(l.List); list != nil {
			*list = append(*list, l.Value)
		} else {
			s.Services = append(s.Services, l.List+" "+l.Value)
		}
	}
}

// linesOf returns the lines of one request. The result is valid until the next
// call with in.
func linesOf(r capability.Request, in *capability.Inspection) []capability.Line {
	in.Problems, in.Claims, in.Lines = in.Problems[:0], in.Claims[:0], in.Lines[:0]
	def, known := wellknown.Find(r.Type)
	spec.InspectLines(r, def, known, capability.Published, in)
	return in.Lines
}

func (s *Surface) normalize() {
	for _, name := range lists {
		l := s.list(name)
		slices.Sort(*l)
		*l = slices.Compact(*l)
	}
}

// Kits returns the Kits that asked for a line, in composition order; nil unless
// the surface comes from [ProjectKits].
func (s Surface) Kits(list, value string) []string {
	return s.kits[capability.Line{List: list, Value: value}]
}

// Equal reports whether two surfaces ask the same.
func (s Surface) Equal(t Surface) bool { return string(s.Canonical()) == string(t.Canonical()) }

// Canonical returns the one JSON encoding of s: compact, keys sorted, empty
// lists left out.
func (s Surface) Canonical() []byte {
	b, err := json.Marshal(s)
	if err != nil { // invalid UTF-8 in a value, which strict decoding does not let in
		b, _ = json.Marshal(s.valid())
	}
	return b
}

func (s Surface) valid() Surface {
	for _, name := range lists {
		l := s.list(name)
		fixed := slices.Clone(*l)
		for i := range fixed {
			fixed[i] = strings.ToValidUTF8(fixed[i], "\ufffd")
		}
		*l = fixed
	}
	return s
}

// Digest returns "sha256:" and the digest of [Surface.Canonical].
func (s Surface) Digest() string {
	sum := sha256.Sum256(s.Canonical())
	return "sha256:" + hex.EncodeToString(sum[:])
}
