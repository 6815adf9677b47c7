// Package mirror reads which registries stand in for others.
//
// The file belongs to the operator. It changes where bytes come from and nothing
// else: a Kit keeps the name it was asked for by, and what a mirror sends is
// compared with the digest. Asking a mirror is package fetch's business.
package mirror

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// File is the name of the configuration, in the home or in the user's directory
// for configuration.
const File = "registries.json"

// Version is that of the file's form.
const Version = 1

// maxFile bounds the file, in bytes.
const maxFile = 1 << 20

// A Mirror has the repositories of another registry.
type Mirror struct {
	// Host is the mirror, with its port unless that is the usual one.
	// Plain HTTP is spoken to this machine's loopback only.
	Host string `json:"host"`

	// Prefix stands before the repository's name at the mirror: with "hub",
	// library/debian is hub/library/debian there.
	Prefix string `json:"prefix,omitempty"`

	// Tags trusts the mirror to say what a tag stands for. Otherwise the
	// registry itself is asked, and the mirror only for content by digest.
	Tags bool `json:"tags,omitempty"`
}

// Config is the file. Its zero value has no mirrors.
type Config struct {
	Version int                 `json:"version"`
	Mirrors map[string][]Mirror `json:"mirrors"` // by registry, in the order they are tried
}

// Of returns the mirrors of a registry, in order.
func (c Config) Of(registry string) []Mirror { return c.Mirrors[registry] }

// Read reads the file of a KITBOX_HOME, or else the user's:
// $XDG_CONFIG_HOME/kitbox/registries.json, by default in ~/.config. Neither is
// no error. A file that cannot be understood is [kiterr.ErrUnsupported] and is
// named, since without it what the operator wanted does not hold.
func Read(home string, getenv func(string) string) (Config, error) {
	names := []string{filepath.Join(home, File)}
	if dir := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		names = append(names, filepath.Join(dir, "kitbox", File))
	} else if dir := getenv("HOME"); dir != "" {
		names = append(names, filepath.Join(dir, ".config", "kitbox", File))
	}
	for _, name := range names {
		st, err := os.Stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Config{}, err
		}
		if st.Size() > maxFile {
			return Config{}, fmt.Errorf("%s has more than %d bytes: %w", name, maxFile, kiterr.ErrUnsupported)
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return Config{}, err
		}
		c, err := Decode(data)
		if err != nil {
			return Config{}, fmt.Errorf("%s: %w: %w", name, err, kiterr.ErrUnsupported)
		}
		return c, nil
	}
	return Config{}, nil
}

// Decode reads the file's form strictly.
func Decode(data []byte) (Config, error) {
	var c Config
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Config{}, err
	}
	if c.Version != Version {
		return Config{}, fmt.Errorf("version %d; this kitbox reads %d", c.Version, Version)
	}
	for registry, ms := range c.Mirrors {
		for i, m := range ms {
			at := fmt.Sprintf("mirrors.%s[%d]", registry, i)
			switch {
			case m.Host == "" || strings.ContainsAny(m.Host, "/@ ") || strings.Contains(m.Host, "://"):
				return Config{}, fmt.Errorf("%s.host %q is no registry: write HOST or HOST:PORT", at, m.Host)
			case m.Host == registry && m.Prefix == "":
				return Config{}, fmt.Errorf("%s is the registry itself", at)
			case strings.HasPrefix(m.Prefix, "/") || strings.HasSuffix(m.Prefix, "/"):
				return Config{}, fmt.Errorf("%s.prefix %q: write it without a slash at its ends", at, m.Prefix)
			}
		}
	}
	return c, nil
}
