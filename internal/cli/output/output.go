// Package output writes what commands print: JSON documents, and foreign text, sizes
// and times the way people read them.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// Printable makes foreign text safe for a terminal: a Kit's reference or a
// build's output must not move the cursor, nor turn around what is read.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if r < ' ' || r >= 0x7f && r < 0xa0 || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			return -1
		}
		return r
	}, s)
}

// JSON writes v as one indented document.
func JSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// An Array writes one JSON array as [JSON] would write all its values at once, and holds
// none of them. One that is not closed, because something went wrong, is no document.
type Array struct {
	W io.Writer // required

	begun bool
}

// Add writes one value.
func (a *Array) Add(v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("  ", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	before := ",\n  "
	if !a.begun {
		a.begun, before = true, "[\n  "
	}
	_, err := fmt.Fprintf(a.W, "%s%s", before, bytes.TrimSuffix(b.Bytes(), []byte{'\n'}))
	return err
}

// Close ends the array.
func (a *Array) Close() error {
	end := "\n]\n"
	if !a.begun {
		end = "[]\n"
	}
	_, err := io.WriteString(a.W, end)
	return err
}

// Table starts a table with its headings; cells are ended by tabs, the last of a row by
// a newline. Nothing is written before Flush.
func Table(w io.Writer, headings ...string) *tabwriter.Writer {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, strings.Join(headings, "\t"))
	return t
}

// Age is d in its largest unit; a negative one is 0s.
func Age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(max(d, 0).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Digest is a digest as far as people read it: its first twelve digits.
func Digest(d string) string {
	algo, hex, ok := strings.Cut(d, ":")
	if !ok || len(hex) < 12 {
		return d
	}
	return algo + ":" + hex[:12]
}

// Bytes writes n the way sizes are written in Kits: powers of 1024.
func Bytes(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size {
			if n%u.size == 0 {
				return fmt.Sprintf("%d %s", n/u.size, u.name)
			}
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.size), u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}
