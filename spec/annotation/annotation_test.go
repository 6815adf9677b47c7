package annotation_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/kiterr"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
)

func TestDerive(t *testing.T) {
	epoch := int64(1700000000)
	d := spec.Descriptor{
		SchemaVersion: "3", Kind: "workload", DisplayName: "L", Licenses: []string{"MIT", "ISC"}, Provides: []string{"a@1.0", "deb/tar@9", "b@1.0"},
		Capabilities: []spec.Item{{Request: capability.Request{Type: "b/x@1"}}, {Group: &spec.Group{Capabilities: []capability.Request{{Type: "a/x@1"}, {Type: "b/x@1", Config: []byte("1")}}}}},
	}
	got, err := annotation.Derive(d, annotation.Options{Builder: &annotation.Builder{Name: "x/y"}, SourceDateEpoch: &epoch})
	if err != nil {
		t.Fatal(err)
	}
	descriptor, err := d.AppendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		annotation.Descriptor: string(descriptor), annotation.SchemaVersion: "3", annotation.Capabilities: "a/x@1,b/x@1",
		annotation.BuiltBy: `{"name":"x/y","version":"dev"}`, annotation.Title: "L", annotation.Licenses: "MIT,ISC",
		annotation.Version: "1.0", annotation.Created: "2023-11-14T22:13:20Z",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if faults := annotation.Check(got, d); len(faults) > 0 {
		t.Errorf("Derive and Check disagree: %v", faults)
	}
	if d, where := annotation.Discover(nil, got); where != annotation.OnManifest || d != string(descriptor) {
		t.Errorf("Discover = %q", where)
	}
}

func TestVersionNeedsUnanimity(t *testing.T) {
	for _, c := range []struct {
		version  string
		provides []string
		want     string
	}{
		{"2", []string{"a@1"}, "2"}, {"", []string{"a@1", "b@2"}, ""}, {"", []string{"a@1", "b"}, ""}, {"", []string{"apk/x@1"}, ""}, {"", nil, ""},
	} {
		got, err := annotation.Derive(spec.Descriptor{Version: c.version, Provides: c.provides}, annotation.Options{})
		if err != nil || got[annotation.Version] != c.want {
			t.Errorf("%q %q: %q, %v; want %q", c.version, c.provides, got[annotation.Version], err, c.want)
		}
	}
}

func TestCheckFindsEveryDisagreement(t *testing.T) {
	d := spec.Descriptor{SchemaVersion: "3", DisplayName: "L"}
	got := annotation.Check(map[string]string{
		annotation.SchemaVersion: "03", annotation.Capabilities: "", annotation.Description: "d", annotation.BuiltBy: `{"name":"x"}`, annotation.Created: "today",
	}, d)
	var keys []string
	for _, f := range got {
		keys = append(keys, f.Key)
	}
	want := []string{annotation.Created, annotation.Description, annotation.Title, annotation.BuiltBy, annotation.Capabilities, annotation.SchemaVersion}
	if !reflect.DeepEqual(keys, want) {
		t.Errorf("faults at %q, want %q", keys, want)
	}
}

func TestParseEpoch(t *testing.T) {
	for v, want := range map[string]int64{"0": 0, "1700000000": 1700000000, "253402300799": 253402300799} {
		if got, err := annotation.ParseEpoch(v); err != nil || got == nil || *got != want {
			t.Errorf("%s: %v, %v", v, got, err)
		}
	}
	if got, err := annotation.ParseEpoch(""); got != nil || err != nil {
		t.Errorf("none: %v, %v", got, err)
	}
	for _, v := range []string{"soon", " 1", "-1", "1.5", "253402300800", "99999999999999999999"} {
		if got, err := annotation.ParseEpoch(v); got != nil || !errors.Is(err, kiterr.ErrRefused) {
			t.Errorf("%q: %v, %v", v, got, err)
		}
	}
}
