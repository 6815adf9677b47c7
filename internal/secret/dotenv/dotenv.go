// Package dotenv reads files of NAME=value lines, as tools that keep secrets in
// variables write them. Nothing in a value is expanded, and no error says what a
// value is.
package dotenv

import (
	"bytes"
	"errors"
	"fmt"
)

// Parse returns the values of text by name; of a name that is there twice, the
// last. Lines that are empty or begin with # are skipped, and "export" before a
// name. A value in single quotes is taken as it is; in double quotes \n, \t, \",
// \\ and \$ are what they stand for; without quotes, # after a blank begins a
// comment. The error names the line.
func Parse(text []byte) (map[string][]byte, error) {
	out := map[string][]byte{}
	for n := 1; len(text) > 0; n++ {
		line, rest, _ := bytes.Cut(text, []byte("\n"))
		text = rest
		line = bytes.TrimSpace(line)
		if n == 1 {
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
		}
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if after, ok := bytes.CutPrefix(line, []byte("export ")); ok {
			line = bytes.TrimSpace(after)
		}
		name, value, ok := bytes.Cut(line, []byte("="))
		name = bytes.TrimSpace(name)
		if !ok || !validName(name) {
			return nil, fmt.Errorf("line %d is not NAME=value", n)
		}
		v, err := unquote(bytes.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		out[string(name)] = v
	}
	return out, nil
}

func validName(b []byte) bool {
	for i, c := range b {
		switch {
		case c == '_', 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z':
		case '0' <= c && c <= '9' && i > 0:
		default:
			return false
		}
	}
	return len(b) > 0
}

var errQuote = errors.New("a quote is not closed on its line")

func unquote(v []byte) ([]byte, error) {
	if len(v) == 0 {
		return v, nil
	}
	switch v[0] {
	case '\'':
		in, after, ok := bytes.Cut(v[1:], []byte("'"))
		if !ok {
			return nil, errQuote
		}
		return in, trailing(after)
	case '"':
		var out []byte
		for i := 1; i < len(v); i++ {
			switch c := v[i]; {
			case c == '"':
				return out, trailing(v[i+1:])
			case c == '\\' && i+1 < len(v):
				i++
				switch v[i] {
				case 'n':
					out = append(out, '\n')
				case 't':
					out = append(out, '\t')
				case '"', '\\', '$':
					out = append(out, v[i])
				default:
					out = append(out, '\\', v[i])
				}
			default:
				out = append(out, c)
			}
		}
		return nil, errQuote
	}
	for i := 1; i < len(v); i++ {
		if v[i] == '#' && (v[i-1] == ' ' || v[i-1] == '\t') {
			return bytes.TrimSpace(v[:i]), nil
		}
	}
	return v, nil
}

// trailing says that something stands behind a closing quote.
func trailing(b []byte) error {
	if b = bytes.TrimSpace(b); len(b) > 0 && b[0] != '#' {
		return errors.New("something stands behind a closing quote")
	}
	return nil
}
