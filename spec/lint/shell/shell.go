// Package shell reads shell text for the questions that warnings ask: which
// variables it reads and sets, and which commands it has.
//
// It is no shell and executes nothing.
package shell

import (
	"path"
	"strings"

	"github.com/kitbox-dev/kitbox/spec/lint/wordset"
)

// A Script is what a shell text does that the rules ask about. It is read with
// a scanner that knows quoting, expansions and here-documents, and nothing of
// control flow: whatever is ambiguous counts in the author's favour.
type Script struct {
	Reads    []Read
	Sets     map[string]bool
	Opaque   bool       // sources a file or evaluates text: variables can come from anywhere
	Commands [][]string // words without quotes, those of substitutions and nested scripts included
}

// A Read is one expansion of a variable.
type Read struct {
	Name     string
	Fallback bool // with a value for when it is unset
}

// Unknown stands in a word for text that only running would tell.
const Unknown = "\x00"

// maxText bounds the scripts that are looked into. Nobody writes longer ones
// into a descriptor.
const maxText = 64 << 10

// Parse reads text. Kit placeholders in it are unknown text, and all of a text
// that is longer than anybody writes is.
func Parse(text string) Script {
	if len(text) > maxText {
		return Script{Opaque: true}
	}
	p := shell{s: neutral(text)}
	p.out.Sets = map[string]bool{}
	p.list(0)
	for _, words := range p.out.Commands {
		p.note(words)
	}
	p.out.nested(maxNested)
	return p.out
}

// maxNested bounds the scripts that scripts hand to another shell.
const maxNested = 3

// nested adds the commands of scripts that s hands to another shell.
func (s *Script) nested(levels int) {
	if levels == 0 {
		return
	}
	for _, cmd := range s.Commands {
		if text, _, ok := handed(cmd); ok {
			inner := shell{s: text}
			inner.out.Sets = map[string]bool{}
			inner.list(0)
			inner.out.nested(levels - 1)
			s.Commands = append(s.Commands, inner.out.Commands...)
		}
	}
}

// neutral replaces Kit placeholders, which are not the shell's.
func neutral(s string) string {
	if !strings.Contains(s, "${{") {
		return s
	}
	var out strings.Builder
	for {
		before, rest, ok := strings.Cut(s, "${{")
		out.WriteString(before)
		if !ok {
			return out.String()
		}
		_, s, _ = strings.Cut(rest, "}}")
		out.WriteString(Unknown)
	}
}

type shell struct {
	s     string
	i     int
	depth int
	docs  []heredoc
	out   Script
}

type heredoc struct {
	end     string
	literal bool
	tabs    bool
}

// maxDepth bounds nesting; deeper text is left unread.
const maxDepth = 100

func (p *shell) more() bool { return p.i < len(p.s) }

func (p *shell) peek(s string) bool { return strings.HasPrefix(p.s[p.i:], s) }

// list reads commands up to closing, which is consumed.
func (p *shell) list(closing byte) {
	if p.depth++; p.depth > maxDepth {
		p.i = len(p.s)
	}
	defer func() { p.depth-- }()
	var words []string
	var word strings.Builder
	inWord := false
	redirected := false
	endWord := func() {
		if inWord && !redirected {
			words = append(words, word.String())
		}
		if inWord {
			redirected = false
		}
		word.Reset()
		inWord = false
	}
	endCommand := func() {
		endWord()
		redirected = false
		if len(words) > 0 {
			p.out.Commands = append(p.out.Commands, words)
		}
		words = nil
	}
	defer endCommand()
	for p.more() {
		c := p.s[p.i]
		switch {
		case c == closing && closing != 0:
			p.i++
			return
		case c == ' ' || c == '\t' || c == '\r':
			endWord()
			p.i++
		case c == '\n':
			endCommand()
			p.i++
			p.bodies()
		case c == ';' || c == '&' || c == '|' || c == ')':
			endCommand()
			p.i++
		case p.peek("\\\n"):
			p.i += 2
		case c == '#' && !inWord:
			if n := strings.IndexByte(p.s[p.i:], '\n'); n >= 0 {
				p.i += n
			} else {
				p.i = len(p.s)
			}
		case c == '(':
			endCommand()
			p.i++
			p.list(')')
		case c == '`':
			p.i++
			inWord = true
			word.WriteString(Unknown)
			p.list('`')
		case c == '<' || c == '>':
			if inWord && strings.Trim(word.String(), "0123456789") == "" {
				word.Reset() // a descriptor number
				inWord = false
			}
			endWord()
			redirected = p.redirection()
		default:
			inWord = true
			p.part(&word)
		}
	}
}

// part reads one piece of a word.
func (p *shell) part(word *strings.Builder) {
	switch c := p.s[p.i]; c {
	case '\\':
		p.i++
		if p.more() {
			if p.s[p.i] != '\n' {
				word.WriteByte(p.s[p.i])
			}
			p.i++
		}
	case '\'':
		p.i++
		n := strings.IndexByte(p.s[p.i:], '\'')
		if n < 0 {
			n = len(p.s) - p.i
		}
		word.WriteString(p.s[p.i : p.i+n])
		p.i = min(p.i+n+1, len(p.s))
	case '"':
		p.i++
		p.text(word, '"')
	case '$':
		p.dollar(word)
	default:
		word.WriteByte(c)
		p.i++
	}
}

// text reads text in which only expansions and backslashes mean something, up
// to closing, or to the end if it is 0.
func (p *shell) text(word *strings.Builder, closing byte) {
	for p.more() {
		switch c := p.s[p.i]; {
		case c == closing && closing != 0:
			p.i++
			return
		case c == '\\' && p.i+1 < len(p.s):
			if n := p.s[p.i+1]; n != '\n' {
				word.WriteByte(n)
			}
			p.i += 2
		case c == '`':
			p.i++
			word.WriteString(Unknown)
			p.list('`')
		case c == '$':
			p.dollar(word)
		default:
			word.WriteByte(c)
			p.i++
		}
	}
}

func (p *shell) dollar(word *strings.Builder) {
	p.i++
	switch {
	case p.peek("(("):
		p.i += 2
		word.WriteString(Unknown)
		p.arithmetic()
	case p.peek("("):
		p.i++
		word.WriteString(Unknown)
		p.list(')')
	case p.peek("{"):
		p.i++
		word.WriteString(Unknown)
		p.braces()
	case p.peek("'"):
		p.i++
		for p.more() && p.s[p.i] != '\'' {
			if p.s[p.i] == '\\' {
				p.i++
			}
			p.i++
		}
		p.i = min(p.i+1, len(p.s))
		word.WriteString(Unknown)
	case p.peek(`"`):
	default:
		name := p.name()
		switch {
		case name != "":
			p.out.Reads = append(p.out.Reads, Read{name, false})
			word.WriteString(Unknown)
		case p.more() && strings.IndexByte("0123456789@*#?$!-", p.s[p.i]) >= 0:
			p.i++
			word.WriteString(Unknown)
		default:
			word.WriteByte('$')
		}
	}
}

// braces reads what follows "${".
func (p *shell) braces() {
	if p.depth++; p.depth > maxDepth {
		p.i = len(p.s)
	}
	defer func() { p.depth-- }()
	if p.more() && (p.s[p.i] == '#' || p.s[p.i] == '!') {
		p.i++
	}
	if name := p.name(); name != "" {
		op := strings.TrimPrefix(p.s[p.i:], ":")
		p.out.Reads = append(p.out.Reads, Read{name, op != "" && strings.IndexByte("-=+", op[0]) >= 0})
		if strings.HasPrefix(op, "=") {
			p.out.Sets[name] = true
		}
	}
	var skip strings.Builder
	for p.more() {
		switch p.s[p.i] {
		case '}':
			p.i++
			return
		case '`':
			p.i++
			p.list('`')
		default:
			p.part(&skip)
		}
	}
}

// arithmetic reads what follows "$((".
func (p *shell) arithmetic() {
	if p.depth++; p.depth > maxDepth {
		p.i = len(p.s)
	}
	defer func() { p.depth-- }()
	var skip strings.Builder
	for open := 2; p.more() && open > 0; {
		switch p.s[p.i] {
		case '(':
			open++
			p.i++
		case ')':
			open--
			p.i++
		default:
			p.part(&skip)
		}
	}
}

func (p *shell) name() string {
	start := p.i
	for p.more() && nameByte(p.s[p.i], p.i > start) {
		p.i++
	}
	return p.s[start:p.i]
}

func nameByte(c byte, digits bool) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || digits && c >= '0' && c <= '9'
}

// redirection reads an operator and reports whether the next word is a file.
func (p *shell) redirection() bool {
	switch {
	case p.peek("<<<"):
		p.i += 3
		return true
	case p.peek("<<"):
		p.i += 2
		d := heredoc{}
		if p.peek("-") {
			d.tabs = true
			p.i++
		}
		for p.peek(" ") || p.peek("\t") {
			p.i++
		}
		var end strings.Builder
		for p.more() && strings.IndexByte(" \t\r\n;&|<>()", p.s[p.i]) < 0 {
			if strings.IndexByte("\\'\"", p.s[p.i]) >= 0 {
				d.literal = true
			}
			if p.s[p.i] == '$' { // not an expansion here
				end.WriteByte('$')
				p.i++
				continue
			}
			p.part(&end)
		}
		d.end = end.String()
		p.docs = append(p.docs, d)
		return false
	case p.peek("<("), p.peek(">("):
		p.i += 2
		p.list(')')
		return false
	}
	for p.more() && strings.IndexByte("<>&|", p.s[p.i]) >= 0 {
		p.i++
	}
	return true
}

// bodies reads the here-documents that begin on this line.
func (p *shell) bodies() {
	docs := p.docs
	p.docs = nil
	for _, d := range docs {
		var body strings.Builder
		for p.more() {
			l, _, _ := strings.Cut(p.s[p.i:], "\n")
			p.i = min(p.i+len(l)+1, len(p.s))
			t := strings.TrimSuffix(l, "\r")
			if d.tabs {
				t = strings.TrimLeft(t, "\t")
			}
			if t == d.end {
				break
			}
			body.WriteString(l + "\n")
		}
		if !d.literal {
			inner := shell{s: body.String(), depth: p.depth, out: p.out}
			var skip strings.Builder
			if inner.depth++; inner.depth <= maxDepth {
				inner.text(&skip, 0)
			}
			p.out = inner.out
		}
	}
}

// reserved are the words after which a command begins anew.
var reserved = wordset.Of("! { } if then elif else fi while until do done time coproc case esac in function [[")

// note records what a command does to variables.
func (p *shell) note(cmd []string) {
	cmd = p.assignments(cmd)
	if len(cmd) == 0 {
		return
	}
	switch args := cmd[1:]; cmd[0] {
	case ".", "source", "eval":
		p.out.Opaque = true
	case "for", "select":
		if len(args) > 0 {
			p.out.Sets[args[0]] = true
		}
	case "export":
		for _, a := range args {
			name, _, ok := strings.Cut(a, "=")
			if ok {
				p.out.Sets[name] = true
			}
			if strings.Contains(name, Unknown) {
				p.out.Opaque = true
			}
		}
	case "declare", "typeset", "local", "readonly", "read", "mapfile", "readarray", "getopts", "printf", "let", "unset":
		for _, a := range args {
			name, _, _ := strings.Cut(a, "=")
			p.out.Sets[strings.TrimRight(name, "+")] = true
		}
	}
}

// assignments takes reserved words and assignments off the front of cmd.
func (p *shell) assignments(cmd []string) []string {
	for len(cmd) > 0 {
		name, _, ok := strings.Cut(cmd[0], "=")
		name = strings.TrimSuffix(name, "+")
		if i := strings.IndexByte(name, '['); i > 0 {
			name = name[:i]
		}
		switch {
		case ok && validName(name):
			p.out.Sets[name] = true
		case !reserved.Has(cmd[0]):
			return cmd
		}
		cmd = cmd[1:]
	}
	return nil
}

func validName(s string) bool {
	for i := range len(s) {
		if !nameByte(s[i], i > 0) {
			return false
		}
	}
	return s != ""
}

// Simple returns cmd without reserved words, assignments and the programs that
// only run another one.
func Simple(cmd []string) []string {
	p := shell{out: Script{Sets: map[string]bool{}}}
	for {
		if cmd = p.assignments(cmd); len(cmd) == 0 {
			return nil
		}
		wrapper := path.Base(cmd[0])
		valued, ok := wrappers[wrapper]
		if !ok {
			return append([]string{wrapper}, cmd[1:]...)
		}
		cmd = cmd[1:]
		for len(cmd) > 0 && strings.HasPrefix(cmd[0], "-") {
			flag := cmd[0]
			cmd = cmd[1:]
			if flag == "--" {
				break
			}
			if strings.Contains(valued, flag+" ") && len(cmd) > 0 {
				cmd = cmd[1:]
			}
		}
		if wrapper == "timeout" && len(cmd) > 0 {
			cmd = cmd[1:]
		}
	}
}

// wrappers are programs that run another, with their flags that take a value.
var wrappers = map[string]string{
	"sudo": "-u -g -C -h -p -U -D -R -T --user --group ", "env": "-u -C -S --unset --chdir ", "exec": "-a ", "command": "", "nohup": "",
	"nice": "-n ", "ionice": "-c -n ", "timeout": "-s -k ", "time": "-f -o ", "runuser": "-u -g -G --user ", "setpriv": "", "stdbuf": "-i -o -e ",
}

// shells are the programs that read a script behind -c.
var shells = wordset.Of("sh bash dash ash zsh ksh mksh busybox")

// Of returns what a command has a shell do: text is run by one, an argument
// list, if it is not nil, as it is. A list that starts no shell is one command.
func Of(command string, argv []string) Script {
	if argv == nil {
		return Parse(command)
	}
	cmd := make([]string, len(argv))
	for i, w := range argv {
		cmd[i] = neutral(w)
	}
	if text, login, ok := handed(cmd); ok {
		s := Parse(text)
		s.Opaque = s.Opaque || login
		return s
	}
	return Script{Sets: map[string]bool{}, Commands: [][]string{cmd}}
}

// handed returns the script that cmd hands to a shell with -c, and whether that
// is a login or interactive shell, which reads files first.
func handed(cmd []string) (text string, login, ok bool) {
	for i := range cmd {
		base := path.Base(cmd[i])
		if !shells.Has(base) && base != "su" {
			continue
		}
		login := base == "su"
		for j := i + 1; j+1 < len(cmd); j++ {
			flag := cmd[j]
			short := strings.HasPrefix(flag, "-") && !strings.HasPrefix(flag, "--")
			if flag == "--login" || short && strings.ContainsAny(flag, "li") {
				login = true
			}
			if short && strings.HasSuffix(flag, "c") {
				return cmd[j+1], login, true
			}
		}
	}
	return "", false, false
}
