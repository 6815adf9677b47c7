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
// programs look at are set, and a store is made for them if the image has none.
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
	for i, cert := range certs {
		name := ".crt"
		if i > 0 {
			name = fmt.Sprintf("-%d.crt", i)
		}
		add(plan.BootFile{Path: strings.TrimSuffix(anchor, ".crt") + name, Content: cert})
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
}
