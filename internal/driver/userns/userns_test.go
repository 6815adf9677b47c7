package userns

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/kitbox-dev/kitbox/kiterr"
)

func TestExplainNamesTheSetting(t *testing.T) {
	for _, s := range switches {
		err := explain(syscall.EPERM, func(name string) ([]byte, error) {
			if name == s.file {
				return []byte(s.bad + "\n"), nil
			}
			return nil, os.ErrNotExist
		})
		name := s.file[strings.LastIndexByte(s.file, '/')+1:]
		if !errors.Is(err, kiterr.ErrUnavailable) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", s.file, err)
		}
	}
	nothing := func(string) ([]byte, error) { return nil, os.ErrNotExist }
	for _, e := range []error{syscall.EPERM, syscall.ENOSPC} {
		if err := explain(e, nothing); !errors.Is(err, kiterr.ErrUnavailable) || !errors.Is(err, e) {
			t.Errorf("%v became %v", e, err)
		}
	}
	if err := explain(syscall.ENOENT, nothing); err != syscall.ENOENT {
		t.Errorf("another error became %v", err)
	}
}

func TestAProcessHasAMap(t *testing.T) {
	rs, err := UIDs()
	if err != nil || len(rs) == 0 {
		t.Errorf("%v, %v", rs, err)
	}
}
