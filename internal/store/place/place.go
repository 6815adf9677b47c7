// Package place says where a home of kitbox is, without opening it.
package place

import (
	"fmt"
	"path/filepath"

	"github.com/kitbox-dev/kitbox/kiterr"
)

// Dir returns the home that env asks for: KITBOX_HOME, else
// $XDG_STATE_HOME/kitbox, else ~/.local/state/kitbox. It is an error when env
// has none of the three, or a relative one.
func Dir(env func(string) string) (string, error) {
	dir := env("KITBOX_HOME")
	if dir == "" {
		if x := env("XDG_STATE_HOME"); filepath.IsAbs(x) { // the XDG rules ignore a relative one
			dir = filepath.Join(x, "kitbox")
		} else if h := env("HOME"); h != "" {
			dir = filepath.Join(h, ".local", "state", "kitbox")
		}
	}
	if dir == "" {
		return "", fmt.Errorf("no place for kitbox's files: set KITBOX_HOME or HOME: %w", kiterr.ErrUnavailable)
	}
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("home %s is not an absolute path: set KITBOX_HOME to one: %w", dir, kiterr.ErrUnavailable)
	}
	return filepath.Clean(dir), nil
}
