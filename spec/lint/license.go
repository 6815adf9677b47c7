package lint

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kitbox-dev/kitbox/spec/spelling"
)

//go:embed spdx.txt
var spdxText string

// spdx holds the ids of the license list, in lower case: they are compared
// without regard to case. Values are as the list writes them.
var spdx = sync.OnceValue(func() (lists struct{ licenses, exceptions map[string]string }) {
	lists.licenses, lists.exceptions = map[string]string{}, map[string]string{}
	into := lists.licenses
	for l := range strings.Lines(spdxText) {
		switch l = strings.TrimSpace(l); {
		case l == "" || l[0] == '#':
		case l == "[exceptions]":
			into = lists.exceptions
		case l[0] == '[':
		default:
			into[strings.ToLower(l)] = l
		}
	}
	return lists
})

// unknownLicense finds ids that the list of this release does not have. Text
// without the shape of an expression is package spec's to report, under the
// same id.
func unknownLicense(k *kit, report reporter) {
	reported := 0
	for i, l := range k.Licenses {
		ws := strings.FieldsFunc(l, func(r rune) bool { return r == ' ' || r == '(' || r == ')' })
		if len(ws)%2 == 0 || strings.Contains(l, "${{") {
			continue
		}
		for j, w := range ws {
			if j%2 == 1 {
				if w != "AND" && w != "OR" && w != "WITH" {
					break // no expression
				}
				continue
			}
			exception := j > 0 && ws[j-1] == "WITH"
			if knownLicense(w, exception) {
				continue
			}
			if reported++; reported > maxUnknown {
				return
			}
			message := fmt.Sprintf("%q is not in the SPDX license list: ", w)
			if near := nearLicense(w); near != "" && !exception {
				message += "did you mean " + near + "?"
			} else {
				message += "write LicenseRef-" + strings.Trim(w, "-.+") + " for a license of your own"
			}
			report("licenses["+strconv.Itoa(i)+"]", message)
		}
	}
}

// maxUnknown bounds what is said about licenses, because looking for the one
// that was meant goes through the whole list.
const maxUnknown = 50

func knownLicense(w string, exception bool) bool {
	w = strings.ToLower(w)
	if strings.HasPrefix(w, "licenseref-") || strings.HasPrefix(w, "documentref-") || strings.HasPrefix(w, "additionref-") || w == "none" || w == "noassertion" {
		return true
	}
	if exception {
		return spdx().exceptions[w] != ""
	}
	return spdx().licenses[w] != "" || spdx().licenses[strings.TrimSuffix(w, "+")] != ""
}

// spoken are names of licenses as people write them.
var spoken = map[string]string{
	"apache": "Apache-2.0", "apache2": "Apache-2.0", "apachev2": "Apache-2.0", "asl2": "Apache-2.0", "bsd": "BSD-3-Clause", "newbsd": "BSD-3-Clause",
	"bsd3": "BSD-3-Clause", "bsd2": "BSD-2-Clause", "gpl": "GPL-3.0-or-later", "gplv2": "GPL-2.0-only", "gpl2": "GPL-2.0-only", "gplv3": "GPL-3.0-only",
	"gpl3": "GPL-3.0-only", "lgpl": "LGPL-3.0-or-later", "lgplv3": "LGPL-3.0-only", "lgpl3": "LGPL-3.0-only", "agpl": "AGPL-3.0-or-later",
	"agplv3": "AGPL-3.0-only", "agpl3": "AGPL-3.0-only", "mpl": "MPL-2.0", "mpl2": "MPL-2.0", "mplv2": "MPL-2.0", "mitlicense": "MIT", "cc0": "CC0-1.0",
	"zlibpng": "Zlib", "boost": "BSL-1.0", "psf": "PSF-2.0", "publicdomain": "CC0-1.0",
}

// nearLicense returns the id that w was meant to be, or "".
func nearLicense(w string) string {
	w = squeeze(strings.ToLower(w))
	if id := spoken[strings.TrimSuffix(w, "license")]; id != "" {
		return id
	}
	if id := spoken[strings.TrimSuffix(w, "0")]; id != "" {
		return id
	}
	best, at := "", 2
	ids := spdx().licenses
	keys := make([]string, 0, len(ids))
	for k := range ids {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if len(w) < 4 {
			break // anything is one letter away
		}
		if n := spelling.Distance(w, squeeze(k), at); n < at {
			best, at = ids[k], n
		}
	}
	return best
}
