// Package wordset keeps lists of words that rules look things up in. Most runs of
// a program look in none of them, so that a list is made a set when first asked.
package wordset

import (
	"strings"
	"sync"
)

// A Set is a set of words. Its methods can be called concurrently.
type Set struct {
	text  string
	once  sync.Once
	words map[string]bool
}

// Of returns the set of the words in text, which white space parts.
func Of(text string) *Set { return &Set{text: text} }

// Has reports whether word is one of the set. A nil set has none.
func (s *Set) Has(word string) bool {
	if s == nil {
		return false
	}
	s.once.Do(func() {
		s.words = map[string]bool{}
		for w := range strings.FieldsSeq(s.text) {
			s.words[w] = true
		}
	})
	return s.words[word]
}
