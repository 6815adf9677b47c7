package credential

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// encodeTOML writes t as TOML 1.0: what is no table first, then a section for
// each table. Tables in lists are written inline.
func encodeTOML(t table) (string, error) {
	var b strings.Builder
	if err := writeSection(&b, nil, t); err != nil {
		return "", err
	}
	return b.String(), nil
}

func writeSection(b *strings.Builder, at []string, t table) error {
	for _, f := range t {
		if _, ok := f.value.(table); ok {
			continue
		}
		text, err := inlineTOML(f.value)
		if err != nil {
			return fmt.Errorf("%s: %w", strings.Join(append(at, f.name), "."), err)
		}
		fmt.Fprintf(b, "%s = %s\n", keyTOML(f.name), text)
	}
	for _, f := range t {
		sub, ok := f.value.(table)
		if !ok {
			continue
		}
		here := append(at[:len(at):len(at)], keyTOML(f.name))
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(b, "[%s]\n", strings.Join(here, "."))
		if err := writeSection(b, here, sub); err != nil {
			return err
		}
	}
	return nil
}

func inlineTOML(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return stringTOML(v), nil
	case bool:
		return strconv.FormatBool(v), nil
	case number:
		// An integer of TOML has 64 bits; what is spelled with a point or
		// an exponent is a float in both.
		if !strings.ContainsAny(string(v), ".eE") {
			if _, err := strconv.ParseInt(string(v), 10, 64); err != nil {
				return "", fmt.Errorf("%s is too large for an integer of TOML", string(v))
			}
		}
		return string(v), nil
	case list:
		parts := make([]string, len(v))
		for i, e := range v {
			var err error
			if parts[i], err = inlineTOML(e); err != nil {
				return "", err
			}
		}
		return "[" + strings.Join(parts, ", ") + "]", nil
	case table:
		parts := make([]string, len(v))
		for i, f := range v {
			text, err := inlineTOML(f.value)
			if err != nil {
				return "", err
			}
			parts[i] = keyTOML(f.name) + " = " + text
		}
		return "{" + strings.Join(parts, ", ") + "}", nil
	}
	return "", errors.New("null cannot be written in TOML")
}

func keyTOML(s string) string {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return stringTOML(s)
		}
	}
	if s == "" {
		return `""`
	}
	return s
}

// stringTOML writes a basic string.
func stringTOML(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"', r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20, r == 0x7f:
			fmt.Fprintf(&b, "\\u%04X", r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
