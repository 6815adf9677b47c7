package packages_test

import (
	"slices"
	"testing"

	"github.com/kitbox-dev/kitbox/resolve/packages"
)

func TestVersionIsTheUpstreamCore(t *testing.T) {
	for raw, want := range map[string]string{
		"1:2.3.4-5": "2.3.4", "3.0.13+dfsg-2": "3.0.13", "2.36-9+b4": "2.36", "4.17.9.2024-1": "4.17.9", "1.07.2-1": "1.07.2",
		"9.20.26-1~deb12u2": "9.20.26", "1.71~bpo12u1": "", "1.2-beta~3-1": "", "2.0~rc1-1": "", "1.2.5-r1": "1.2.5", "20240101": "20240101",
		"": "", "abc": "", "1.": "1", "1..2": "1", "1.2a3": "1.2", "a:1": "", ":1": "", "7.88.1-10+deb12u5": "7.88.1", "1-~": "1",
	} {
		if got := packages.Version(raw); got != want {
			t.Errorf("Version(%q) = %q, want %q", raw, got, want)
		}
	}
}

const dpkg = "Package: oak\nStatus: install ok installed\nVersion: 2.1-3\nDescription: x\n Version: 9\n\nPackage: ash\nStatus: deinstall ok config-files\nVersion: 1.0-1\n\n" +
	"Package: UP\nStatus: install ok installed\nVersion: 1\n\nPackage: g++\r\nStatus: install ok installed\r\nVersion: 4:12.2.0-3\r\n\r\n" +
	"Package: yew\nStatus: install ok installed\nVersion: 2~rc1-1\n\nPackage: yew\nStatus: install ok installed\nVersion: 2-1\n\n" +
	"Package: fir\nStatus: hold ok installed\nVersion: 3-1"

func TestDerive(t *testing.T) {
	apk := "P:musl\nV:1.2.5-r1\nA:x86_64\n\nP:a_b\nV:1\n\nP:oak\nV:2.1\n"
	got := packages.Derive([]packages.Database{{Dpkg: dpkg, Apk: apk}})
	if want := []string{"apk/musl@1.2.5", "apk/oak@2.1", "deb/fir@3", "deb/g++@12.2.0", "deb/oak@2.1"}; !slices.Equal(got, want) {
		t.Errorf("Derive = %q, want %q", got, want)
	}
	other := packages.Database{Dpkg: "Package: oak\nStatus: install ok installed\nVersion: 2.1-99\n\nPackage: fir\nStatus: install ok installed\nVersion: 4-1\n"}
	if got := packages.Derive([]packages.Database{{Dpkg: dpkg}, other}); !slices.Equal(got, []string{"deb/oak@2.1"}) {
		t.Errorf("agreed: %q", got)
	}
	if got := packages.Derive(nil); len(got) > 0 {
		t.Errorf("no platform provides %q", got)
	}
}

func TestCheck(t *testing.T) {
	got := packages.Check([]string{"deb/oak@2.1", "deb/oak@2.2", "oak@9", "deb/ash@1.0", "apk/musl@1", "deb/yew@2"}, packages.Database{Dpkg: dpkg})
	if want := []string{"deb/oak@2.2", "deb/ash@1.0", "apk/musl@1", "deb/yew@2"}; !slices.Equal(got, want) {
		t.Errorf("Check = %q, want %q", got, want)
	}
}

func FuzzDerive(f *testing.F) {
	f.Add(dpkg, "P:musl\nV:1.2.5-r1\n")
	f.Fuzz(func(t *testing.T, d, a string) {
		db := packages.Database{Dpkg: d, Apk: a}
		if bad := packages.Check(packages.Derive([]packages.Database{db, db}), db); len(bad) > 0 {
			t.Fatalf("derived but not borne out: %q", bad)
		}
	})
}
