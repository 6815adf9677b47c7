package option

import (
	"math"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestSizesArePowersOf1024(t *testing.T) {
	for s, want := range map[string]int64{"1": 1, "1b": 1, "2k": 2 << 10, "512m": 512 << 20, "512MiB": 512 << 20, "3g": 3 << 30, "1TB": 1 << 40, "8388607t": 8388607 << 40, "9223372036854775807": math.MaxInt64} {
		if got, err := Bytes(s); got != want || err != nil {
			t.Errorf("%s: %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "m", "0", "-1", "1.5g", "1x", "1mm", "1 m", "9223372036854775808", "8388608t", "1g2", "١m"} {
		if got, err := Bytes(s); got != 0 || err == nil {
			t.Errorf("%q is %d", s, got)
		}
	}
}

func TestPairsAndVariablesHaveNames(t *testing.T) {
	cmd := &cobra.Command{Use: "run"}
	m, err := Pairs(cmd, "--arg", []string{"a=1=2", "b=", "c d=x\ny"})
	if err != nil || len(m) != 3 || m["a"] != "1=2" || m["b"] != "" || m["c d"] != "x\ny" {
		t.Errorf("%q, %v", m, err)
	}
	for _, list := range [][]string{{"a"}, {"=1"}, {""}, {"a=1", "a=1"}} {
		if _, err := Pairs(cmd, "--arg", list); err == nil || !strings.Contains(err.Error(), `see "run --help"`) {
			t.Errorf("%q: %v", list, err)
		}
	}
	for _, list := range [][]string{{"1a=x"}, {"a b=x"}, {"a-b=x"}, {"ä=x"}, {"a\n=x"}} {
		if _, err := Variables(cmd, list); err == nil {
			t.Errorf("%q is no name", list)
		}
	}
	if m, err := Variables(cmd, []string{"_A1=x y"}); err != nil || m["_A1"] != "x y" {
		t.Errorf("%q, %v", m, err)
	}
}

func TestExclusiveOptionsAreNamed(t *testing.T) {
	for args, want := range map[string]string{
		"": "", "--a 1": "", "--c 1 --d 2": "",
		"--a 1 --b 2":       `--a and --b exclude each other; see "x --help"`,
		"--b 2 --a 1 --c 3": `--a and --b and --c exclude each other; see "x --help"`,
		"--d 1 --e 2":       `--d and --e exclude each other; see "x --help"`,
	} {
		ran := false
		cmd := &cobra.Command{Use: "x", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error { ran = true; return nil }}
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			cmd.Flags().String(name, "", "")
		}
		Exclusive(cmd, "a", "b", "c")
		Exclusive(cmd, "d", "e")
		cmd.SetArgs(strings.Fields(args))
		err := cmd.Execute()
		if ran != (want == "") || want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%s: %v, ran %v", args, err, ran)
		}
	}
}
