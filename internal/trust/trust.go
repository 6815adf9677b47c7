// Package trust makes a sandbox trust authorities of this host: files of the
// image's stores that something is added to, and variables that lead programs
// with stores of their own there.
//
// It decides what is added to a plan. Whose certificates they are is the
// boundary's; that they are written is the guest's.
package trust

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// stores are where distributions keep what they trust, as one file. The first
// that an image has is its own; without any, the first is made.
var stores = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Arch, Alpine
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Fedora and its kin
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem", // openSUSE
	"/etc/ssl/cert.pem",      // Alpine, OpenSSL
}

// anchor is where Debian's update-ca-certificates looks for more than the
// distribution's own, so that a package which rebuilds the store keeps it.
const anchor = "/usr/local/share/ca-certificates/kitbox.crt"

// bundle holds all that is added, for variables that name one file.
const bundle = "/usr/local/share/kitbox-authorities.pem"

// anchors are directories of other distributions with the same meaning.
var anchors = []string{"/etc/pki/ca-trust/source/anchors", "/etc/ca-certificates/trust-source/anchors"}

// Variables that replace what a program trusts by a file, and those that add to
// it.
var (
	replacing = []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "PIP_CERT"}
	adding    = []string{"NODE_EXTRA_CA_CERTS", "DENO_CERT"}
)

// Add adds certs to whatever the machine trusts and takes nothing away. The
// first is that of the boundary. exists says what the image has. With variables, those that
// programs look at are set, a store is made for them if the image has none, and
// browsers are told.
func Add(p *plan.Plan, exists func(string) bool, certs []string, variables bool) {
	store, made := stores[0], variables
	if i := slices.IndexFunc(stores, exists); i >= 0 {
		store = stores[i]
	}
	add := func(f plan.BootFile) {
		if !slices.ContainsFunc(p.Machine.Files, func(o plan.BootFile) bool { return o.Path == f.Path }) {
			p.Machine.Files = append(p.Machine.Files, f)
		}
	}
	all := strings.Join(certs, "")
	var placed []string
	for i, cert := range certs {
		name := ".crt"
		if i > 0 {
			name = fmt.Sprintf("-%d.crt", i)
		}
		placed = append(placed, strings.TrimSuffix(anchor, ".crt")+name)
		add(plan.BootFile{Path: placed[i], Content: cert})
		for _, dir := range anchors {
			if exists(dir) {
				add(plan.BootFile{Path: dir + "/kitbox" + name, Content: cert})
			}
		}
	}
	for _, s := range stores {
		add(plan.BootFile{Path: s, Content: all, Append: true, Optional: s != store || !made})
	}
	have := map[string]string{}
	for _, kv := range p.Launch.Env {
		name, value, _ := strings.Cut(kv, "=")
		have[name] = value
	}
	extra := anchor
	if len(certs) > 1 && variables {
		extra = bundle
		add(plan.BootFile{Path: bundle, Content: all})
	}
	set := func(names []string, file string) {
		for _, n := range names {
			if v := have[n]; v != "" {
				// It names what to trust: that is where it is added.
				if path.IsAbs(v) {
					add(plan.BootFile{Path: path.Clean(v), Content: all, Append: true, Optional: true})
				}
				continue
			}
			if variables {
				p.Launch.Env = append(p.Launch.Env, n+"="+file)
				p.Launch.Trust = append(p.Launch.Trust, n)
			}
		}
	}
	set(replacing, store)
	set(adding, extra)
	slices.Sort(p.Launch.Env)
	for _, pattern := range javas(have["JAVA_HOME"]) {
		add(plan.BootFile{Path: pattern, Content: all, Java: true})
	}
	if variables {
		browse(exists, certs, placed, add)
		nest(p, exists, store, extra, add)
	}
}

// javas are where Java keeps what it trusts: as distributions have it, and images
// of vendors.
func javas(home string) []string {
	ps := []string{"/etc/ssl/certs/java/cacerts", "/etc/pki/java/cacerts", "/usr/lib/jvm/*/lib/security/cacerts", "/usr/lib/jvm/*/jre/lib/security/cacerts",
		"/opt/java/*/lib/security/cacerts", "/usr/java/*/lib/security/cacerts", "/opt/*/lib/security/cacerts"}
	if path.IsAbs(home) && !strings.ContainsAny(home, `*?[\`) {
		ps = append(ps, path.Join(home, "lib/security/cacerts"), path.Join(home, "jre/lib/security/cacerts"))
	}
	return ps
}

// What containers inside get: the guest's program in front of their runtime, and
// what it is to give them (internal/guest/nested).
const (
	runtime   = "/usr/local/libexec/kitbox/oci-runtime"
	nestedFor = "/usr/local/share/kitbox/containers.json"
	hook      = "/usr/share/containers/oci/hooks.d/kitbox-authorities.json" // podman, buildah, CRI-O
)

// engines run containers, and programs are where they are.
var (
	engines  = []string{"dockerd", "containerd", "buildkitd", "podman", "buildah", "crio", "runc", "crun"}
	programs = []string{"/usr/bin", "/usr/sbin", "/usr/local/bin", "/bin", "/sbin"}
)

// nest makes containers trust what the machine does, where it has an engine for
// them. The runtime's name leads to the guest's program before it leads to the
// runtime, for engines that look for it in PATH, as Docker and BuildKit do.
func nest(p *plan.Plan, exists func(string) bool, store, authorities string, add func(plan.BootFile)) {
	has := func(name string) bool {
		return slices.ContainsFunc(programs, func(dir string) bool { return exists(path.Join(dir, name)) })
	}
	if !slices.ContainsFunc(engines, has) && len(p.Machine.Capabilities) == 0 {
		return // nor can one that comes later run any
	}
	add(plan.BootFile{Path: runtime, Program: true})
	add(plan.BootFile{Path: nestedFor, Content: text(map[string]any{"authorities": authorities, "store": store, "variables": slices.Concat(replacing, adding)})})
	add(plan.BootFile{Path: hook, Content: `{"version":"1.0.0","hook":{"path":"` + runtime + `","args":["oci-runtime","precreate"]},"when":{"always":true},"stages":["precreate"]}` + "\n"})
	for _, name := range []string{"runc", "crun"} {
		if has(name) && !exists(path.Join("/usr/local/sbin", name)) {
			add(plan.BootFile{Path: path.Join("/usr/local/sbin", name), Content: runtime, Link: true})
		}
	}
}
