package killer

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/store/durable"
)

// counting is the directory of a file that this process, when it is set, counts in for
// ever.
const counting = "KITBOX_TEST_COUNTING"

func TestMain(m *testing.M) {
	if dir := os.Getenv(counting); dir != "" {
		for n := count(dir) + 1; ; n++ {
			fmt.Println(n)
			if err := durable.ReplaceAlone(filepath.Join(dir, "n"), []byte(strconv.Itoa(n)), 0o600); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}

func count(dir string) int {
	b, _ := os.ReadFile(filepath.Join(dir, "n"))
	n, _ := strconv.Atoi(string(b))
	return n
}

// What was printed is known to the last line, so that a test can tell what must be there.
func TestAFileIsWholeHoweverOftenItsWriterIsKilled(t *testing.T) {
	dir := t.TempDir()
	rounds, before := 0, 0
	Victim{Env: counting + "=" + dir, Dir: dir, Name: "n", Lines: 2, Within: 2 * time.Millisecond}.Kill(t, 10, func(said string) {
		rounds++
		n, err := strconv.Atoi(said)
		if got := count(dir); err != nil || n <= before || got != n && got != n-1 {
			t.Fatalf("it said %q, and counted to %d", said, got)
		}
		before = n - 1
	})
	if rounds < 10 {
		t.Errorf("%d rounds", rounds)
	}
	if es, err := os.ReadDir(dir); err != nil || len(es) != 1 {
		t.Errorf("left %v, %v", es, err)
	}
}
