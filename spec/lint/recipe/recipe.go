// Package recipe reads Dockerfiles for the questions that warnings ask: what
// the stages start from and what they run.
//
// It builds nothing and judges nothing; what it does not understand it leaves
// out.
package recipe

import (
	"encoding/json"
	"strings"

	"github.com/kitbox-dev/kitbox/spec/lint/shell"
)

// A Recipe is a Dockerfile. The zero value is an empty one.
type Recipe struct {
	Stages []Stage
	Text   string
}

// A Stage is one FROM and what follows.
type Stage struct {
	From string // the base, with arguments resolved from their defaults; "" if they have none
	Name string
	Runs []shell.Script
	Adds bool // copies or adds a file system, or accounts
}

// Parse reads a Dockerfile.
func Parse(text string) Recipe {
	r := Recipe{Text: text}
	args := map[string]string{}
	for _, in := range instructions(text) {
		switch in.name {
		case "ARG":
			for _, a := range strings.Fields(in.args) {
				name, value, _ := strings.Cut(a, "=")
				if len(r.Stages) == 0 {
					args[name] = strings.Trim(value, `"'`)
				}
			}
		case "FROM":
			var words []string
			for _, w := range strings.Fields(in.args) {
				if !strings.HasPrefix(w, "--") {
					words = append(words, w)
				}
			}
			if len(words) == 0 {
				continue
			}
			s := Stage{From: substitute(words[0], args)}
			if len(words) == 3 && strings.EqualFold(words[1], "as") {
				s.Name = words[2]
			}
			r.Stages = append(r.Stages, s)
		case "RUN":
			if n := len(r.Stages); n > 0 {
				r.Stages[n-1].Runs = append(r.Stages[n-1].Runs, in.script())
			}
		case "COPY", "ADD":
			if n := len(r.Stages); n > 0 {
				if f := strings.Fields(in.args); len(f) > 1 {
					switch strings.Trim(f[len(f)-1], `"]`) {
					case "/", "/etc", "/etc/", "/etc/passwd":
						r.Stages[n-1].Adds = true
					}
				}
			}
		}
	}
	return r
}

// Base returns the image that the last stage comes down to, through the stages
// it is built on, and those stages. The image is "" if it cannot be told.
func (r Recipe) Base() (image string, chain []Stage) {
	n := len(r.Stages) - 1
	for n >= 0 {
		s := r.Stages[n]
		chain = append(chain, s)
		next := -1
		for i := range r.Stages[:n] {
			if r.Stages[i].Name != "" && strings.EqualFold(r.Stages[i].Name, s.From) {
				next = i
			}
		}
		if next < 0 {
			return s.From, chain
		}
		n = next
	}
	return "", chain
}

// substitute resolves $NAME, ${NAME} and ${NAME:-default}.
func substitute(s string, args map[string]string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' {
			out.WriteByte(s[i])
			continue
		}
		rest := s[i+1:]
		braces := strings.HasPrefix(rest, "{")
		if braces {
			rest = rest[1:]
		}
		n := 0
		for n < len(rest) && nameByte(rest[n], n > 0) {
			n++
		}
		value := args[rest[:n]]
		i += n
		if braces {
			end := strings.IndexByte(rest, '}')
			if end < 0 {
				return ""
			}
			if def, ok := strings.CutPrefix(rest[n:end], ":-"); ok && value == "" {
				value = def
			}
			i += end - n + 2
		}
		if value == "" {
			return ""
		}
		out.WriteString(value)
	}
	return out.String()
}

type instruction struct {
	name string
	args string // without flags; continued lines joined
	docs string // the bodies of its here-documents
}

// script returns what a RUN has the shell do.
func (in instruction) script() shell.Script {
	if strings.HasPrefix(strings.TrimSpace(in.args), "[") {
		var argv []string
		if json.Unmarshal([]byte(in.args), &argv) == nil && len(argv) > 0 {
			return shell.Of("", argv)
		}
	}
	if in.docs != "" && strings.HasPrefix(in.args, "<<") {
		return shell.Parse(in.docs) // the document is the script
	}
	return shell.Parse(in.args + "\n" + in.docs)
}

// instructions splits a Dockerfile.
func instructions(text string) []instruction {
	var out []instruction
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		l := strings.TrimSpace(lines[i])
		if l == "" || l[0] == '#' {
			continue
		}
		var full strings.Builder
		for {
			cont := strings.HasSuffix(l, `\`)
			full.WriteString(strings.TrimSuffix(l, `\`))
			if !cont || i+1 >= len(lines) {
				break
			}
			full.WriteByte(' ')
			for i++; i < len(lines); i++ {
				if l = strings.TrimSpace(lines[i]); l != "" && l[0] != '#' {
					break
				}
			}
		}
		name, args, _ := strings.Cut(full.String(), " ")
		in := instruction{name: strings.ToUpper(strings.TrimSpace(name)), args: strings.TrimSpace(args)}
		if in.name == "RUN" || in.name == "COPY" || in.name == "ADD" {
			for strings.HasPrefix(in.args, "--") {
				_, in.args, _ = strings.Cut(in.args, " ")
				in.args = strings.TrimSpace(in.args)
			}
			in.args = strings.TrimLeft(in.args, "\n \t")
			var docs []string
			for _, end := range documents(in.args) {
				for i++; i < len(lines); i++ {
					if strings.TrimLeft(strings.TrimSuffix(lines[i], "\r"), "\t") == end {
						docs = append(docs, end)
						break
					}
					in.docs += lines[i] + "\n"
				}
			}
			if in.name == "RUN" && len(docs) > 0 && !strings.HasPrefix(in.args, "<<") {
				in.docs += docs[len(docs)-1] + "\n"
			}
		}
		out = append(out, in)
	}
	return out
}

// documents returns the delimiters of the here-documents that args begin.
func documents(args string) []string {
	var out []string
	for _, w := range strings.Fields(args) {
		rest, ok := strings.CutPrefix(w, "<<")
		if !ok || strings.HasPrefix(rest, "<") {
			continue
		}
		if rest = strings.Trim(strings.TrimPrefix(rest, "-"), `"'\`); identifier(rest) {
			out = append(out, rest)
		}
	}
	return out
}

func nameByte(c byte, digits bool) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || digits && c >= '0' && c <= '9'
}

func identifier(s string) bool {
	for i := range len(s) {
		if !nameByte(s[i], i > 0) {
			return false
		}
	}
	return s != ""
}
