package secret_test

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/secret"
)

const real = "tok-31337"

// TestNothingPrintsAValue tries the ways by which secrets reach logs.
func TestNothingPrintsAValue(t *testing.T) {
	type holder struct {
		Public  secret.Value
		private secret.Value
		deep    struct{ v *secret.Value }
		list    []secret.Value
		table   map[string]secret.Value
		any     any
	}
	v := secret.New([]byte(real))
	h := holder{Public: v, private: v, list: []secret.Value{v}, table: map[string]secret.Value{"a": v}, any: v}
	h.deep.v = &v
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%b", "%c", "%U", "%t", "%e", "%p", "%o"} {
		for _, a := range []any{v, &v, h, &h, []holder{h}, fmt.Errorf("wrapped: %v", v)} {
			fmt.Fprintf(&out, verb+"\n", a)
		}
	}
	fmt.Fprintln(&out, v, h)
	for _, a := range []any{v, h, map[string]any{"k": v}} {
		b, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
	}
	if err := gob.NewEncoder(&out).Encode(v); err != nil {
		t.Fatal(err)
	}
	for _, l := range []slog.Handler{slog.NewJSONHandler(&out, nil), slog.NewTextHandler(&out, nil)} {
		slog.New(l).Info("msg", "v", v, "h", h, slog.Group("g", "v", v))
	}
	for _, form := range []string{real, fmt.Sprintf("%x", real), fmt.Sprintf("%X", real), "116 111 107", "0x74, 0x6f"} {
		if strings.Contains(out.String(), form) {
			t.Errorf("%q was printed: %.2000s", form, out.String())
		}
	}
	if !strings.Contains(out.String(), "REDACTED") {
		t.Error("nothing says that something was left out")
	}
}

func TestRead(t *testing.T) {
	for text, want := range map[string]string{"a": "a", "a b\n": "a b", "é\r\n": "é", strings.Repeat("x", secret.Max): strings.Repeat("x", secret.Max)} {
		v, err := secret.Read(strings.NewReader(text))
		if err != nil || string(v.Expose()) != want {
			t.Errorf("%.20q: %.20q, %v", text, v.Expose(), err)
		}
	}
	for _, text := range []string{"", "\n", "a\nb", "a\n\n", "a\x00", "\x1b[0m", "\xff\xfe", "a\rb", strings.Repeat("x", secret.Max+1)} {
		if _, err := secret.Read(strings.NewReader(text)); err == nil {
			t.Errorf("%.20q was accepted", text)
		} else if text != "" && len(text) > 3 && strings.Contains(err.Error(), text[:2]) {
			t.Errorf("%.20q: the error says what was read: %v", text, err)
		}
	}
}

func TestWipeReachesCopies(t *testing.T) {
	b := []byte(real)
	v := secret.New(b)
	c := v
	v.Wipe()
	if !c.Empty() || bytes.Contains(b, []byte("tok")) {
		t.Errorf("left %q, %q", c.Expose(), b)
	}
	new(secret.Value).Wipe()
}
