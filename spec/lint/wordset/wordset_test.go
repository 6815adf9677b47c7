package wordset

import (
	"sync"
	"testing"
)

func TestASetHasItsWords(t *testing.T) {
	s := Of(" one two\n\tthree ")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for word, want := range map[string]bool{"one": true, "two": true, "three": true, "": false, "on": false, "one two": false} {
				if s.Has(word) != want {
					t.Errorf("Has(%q) = %v", word, !want)
				}
			}
		})
	}
	all.Wait()
	if (*Set)(nil).Has("") {
		t.Error("a nil set has a word")
	}
}
