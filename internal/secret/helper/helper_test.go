package helper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kitbox-dev/kitbox/internal/secret/helper"
)

func run(t *testing.T, command string) (helper.Token, error) {
	t.Helper()
	return helper.Run(t.Context(), command, []string{"PATH=/usr/bin:/bin", "MINE=set"}, nil)
}

func TestWhatAHelperPrints(t *testing.T) {
	far := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	for command, want := range map[string]struct {
		token string
		lasts time.Duration
	}{
		"echo tok":                 {"tok", helper.Lasts},
		"printf tok":               {"tok", helper.Lasts},
		"echo $MINE; echo out >&2": {"set", helper.Lasts},
		`echo '{"token":"tok"}'`:   {"tok", helper.Lasts},
		`echo '{"token":"tok","expiresIn":60,"other":1}'`:                       {"tok", time.Minute},
		`echo '{"token":"tok","expiresAt":"` + far.Format(time.RFC3339) + `"}'`: {"tok", time.Hour},
	} {
		got, err := run(t, command)
		if err != nil || string(got.Value.Expose()) != want.token {
			t.Errorf("%s: %q, %v", command, got.Value.Expose(), err)
			continue
		}
		if d := time.Until(got.Expires) - want.lasts; d > time.Second || d < -20*time.Second {
			t.Errorf("%s: it ends in %v", command, time.Until(got.Expires))
		}
	}
}

func TestWhatIsNoToken(t *testing.T) {
	for command, want := range map[string]string{
		"true":                  "empty",
		"printf 'a\\nb'":        "several lines",
		"echo hush; exit 3":     "exit status 3",
		"kill -9 $$":            "signal: killed",
		"nonsuch-program":       "exit status 127",
		`echo '{"key":"hush"}'`: "JSON",
		`echo '{"token":"hush'`: "JSON",
		`echo '{"token":"hush","expiresAt":"2001-02-03T04:05:06Z"}'`: "expired",
		"yes hush": "more than",
	} {
		began := time.Now()
		_, err := run(t, command)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", command, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: the error says what was printed: %v", command, err)
		}
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("%s took %v", command, d)
		}
	}
}

// TestAHelperThatHangsIsEnded has a child that keeps the pipe open.
func TestAHelperThatHangsIsEnded(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := helper.Run(ctx, "sleep 100 & sleep 100", []string{"PATH=/usr/bin:/bin"}, nil); !errors.Is(err, context.DeadlineExceeded) && err == nil {
		t.Errorf("err = %v", err)
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
}

func TestItsEnvironmentIsWhatWasChosen(t *testing.T) {
	t.Setenv("SECRET_OF_THE_HOST", "leak")
	var said bytes.Buffer
	if _, err := helper.Run(t.Context(), "env >&2; echo tok", nil, &said); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(said.String(), "leak") {
		t.Errorf("it got %s", said.String())
	}
	env := helper.Environment(func(name string) string {
		return map[string]string{"HOME": "/h", "GH_TOKEN": "leak", "PATH": "/bin"}[name]
	})
	if fmt.Sprint(env) != "[HOME=/h PATH=/bin]" {
		t.Errorf("Environment = %v", env)
	}
}
