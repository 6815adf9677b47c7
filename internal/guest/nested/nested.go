// Package nested makes the containers inside a sandbox trust what the sandbox
// trusts. It stands between a container engine and its OCI runtime: a bundle gets
// a read-only file with authorities, and the variables that lead programs there.
//
// It adds and replaces nothing: a variable that a container sets stays, and so does
// the store of its image. What cannot be added is left out, since a container that
// does not trust the boundary is refused there, and one that does not run is
// nobody's wish.
package nested

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// ConfigPath is where a sandbox says what its containers get.
const ConfigPath = "/usr/local/share/kitbox/containers.json"

// target is what containers see. /dev is the one directory that is a filesystem of
// its own in every container, so that no image gets a file out of this.
const target = "/dev/kitbox-authorities.pem"

// A Config is what the containers of a sandbox get.
type Config struct {
	Authorities string   `json:"authorities"` // file of the certificates that the sandbox adds
	Store       string   `json:"store"`       // file of all that the sandbox trusts
	Variables   []string `json:"variables"`   // that lead programs to a file of certificates
}

// Bounds of what is read, in bytes.
const (
	maxDocument = 16 << 20
	maxStore    = 4 << 20
)

// read returns the content of a regular file of at most max bytes.
func read(open func(string) (*os.File, error), name string, max int64) ([]byte, error) {
	f, err := open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file: %w", name, errors.Join(err, os.ErrInvalid))
	}
	b, err := io.ReadAll(io.LimitReader(f, max+1))
	if err == nil && int64(len(b)) > max {
		err = fmt.Errorf("%s has more than %d bytes", name, max)
	}
	return b, err
}

// Load reads the configuration at name.
func Load(name string) (*Config, error) {
	b, err := read(os.Open, name, maxDocument)
	if err != nil {
		return nil, err
	}
	c := new(Config)
	return c, json.Unmarshal(b, c)
}

// stores are where the images of containers keep what they trust.
var stores = []string{
	"etc/ssl/certs/ca-certificates.crt",
	"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"etc/ssl/ca-bundle.pem",
	"etc/ssl/cert.pem",
}

// compose returns what a container with this root filesystem trusts and what c
// adds. The image is not trusted: no link of it leads out of it, and of its store
// nothing but certificates is taken.
func (c *Config) compose(root string) ([]byte, error) {
	ours, err := read(os.Open, c.Authorities, maxStore)
	if err != nil {
		return nil, err
	}
	var theirs []byte
	if r, err := os.OpenRoot(root); err == nil {
		defer r.Close()
		for _, s := range stores {
			if b, err := read(r.Open, s, maxStore); err == nil {
				theirs = certificates(b)
				break
			}
		}
	}
	if len(theirs) == 0 {
		if theirs, err = read(os.Open, c.Store, maxStore); err != nil {
			return nil, err
		}
		theirs = certificates(theirs)
	}
	if bytes.Contains(theirs, bytes.TrimSpace(ours)) {
		return theirs, nil
	}
	return append(theirs, certificates(ours)...), nil
}

// certificates returns the certificates of b, without anything else.
func certificates(b []byte) []byte {
	var out bytes.Buffer
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			return out.Bytes()
		}
		if block.Type == "CERTIFICATE" {
			_ = pem.Encode(&out, &pem.Block{Type: block.Type, Bytes: block.Bytes})
		}
	}
}

// place puts content where it can be bound from, in dir, and returns its path.
// Containers of one image share it.
func place(dir string, content []byte) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	sum := sha256.Sum256(content)
	name := filepath.Join(dir, hex.EncodeToString(sum[:])+".pem")
	if b, err := read(os.Open, name, maxStore*2); err == nil && bytes.Equal(b, content) {
		return name, nil
	}
	f, err := os.CreateTemp(dir, ".new-")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	return name, err
}

// Filter returns spec, the configuration of an OCI bundle in the directory bundle,
// with what c adds; files that it binds are put into dir. A container whose /dev
// is the sandbox's own, or that has what would be added, stays as it is.
func (c *Config) Filter(spec []byte, bundle, dir string) ([]byte, error) {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(spec, &doc); err != nil {
		return nil, fmt.Errorf("the bundle's configuration: %w", err)
	}
	var mounts []json.RawMessage
	var root struct{ Path string }
	if err := errors.Join(optional(doc["mounts"], &mounts), optional(doc["root"], &root)); err != nil {
		return nil, fmt.Errorf("the bundle's configuration: %w", err)
	}
	own := false
	for _, raw := range mounts {
		var m struct{ Destination, Type string }
		if err := json.Unmarshal(raw, &m); err != nil {
			return nil, fmt.Errorf("the bundle's mounts: %w", err)
		}
		switch path.Clean(m.Destination) {
		case target:
			return spec, nil
		case "/dev":
			own = m.Type == "tmpfs"
		}
	}
	if !own || len(doc["process"]) == 0 {
		return spec, nil
	}
	if !filepath.IsAbs(root.Path) {
		root.Path = filepath.Join(bundle, root.Path)
	}
	content, err := c.compose(root.Path)
	if err != nil {
		return nil, err
	}
	source, err := place(dir, content)
	if err != nil {
		source = c.Store // an engine of a user who may not write there
	}
	mount, err := json.Marshal(map[string]any{"destination": target, "type": "bind", "source": source, "options": []string{"bind", "ro", "nosuid", "nodev", "noexec"}})
	if err != nil {
		return nil, err
	}
	process, err := c.Environ(doc["process"])
	if err != nil {
		return nil, err
	}
	doc["process"] = process
	if doc["mounts"], err = json.Marshal(append(mounts, mount)); err != nil {
		return nil, err
	}
	return json.Marshal(doc)
}

func optional(raw json.RawMessage, into any) error {
	if len(raw) == 0 {
		return nil
	}
	return json.Unmarshal(raw, into)
}

// Environ returns process, as OCI has it, with the variables of c that it does not
// set.
func (c *Config) Environ(process []byte) ([]byte, error) {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(process, &doc); err != nil {
		return nil, fmt.Errorf("the process of the bundle: %w", err)
	}
	var env []string
	if err := optional(doc["env"], &env); err != nil {
		return nil, fmt.Errorf("the environment of the bundle: %w", err)
	}
	for _, v := range c.Variables {
		if !slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, v+"=") }) {
			env = append(env, v+"="+target)
		}
	}
	b, err := json.Marshal(env)
	if err != nil {
		return nil, err
	}
	doc["env"] = b
	return json.Marshal(doc)
}
