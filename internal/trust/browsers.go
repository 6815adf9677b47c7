package trust

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"path"
	"slices"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

// Browsers keep what they trust in databases of each user. What all of them take from
// an administrator is policy, and a certificate can be one.

// policies are where browsers of Chromium's kin read it, file by file in the order of
// their names, of which the last to speak of a thing has its way: that is the image's.
var policies = []string{
	"/etc/chromium/policies",         // also what Playwright brings
	"/etc/chromium-browser/policies", // Ubuntu
	"/etc/opt/chrome/policies",
	"/etc/opt/chrome_for_testing/policies", // Puppeteer
	"/etc/opt/edge/policies",
	"/etc/brave/policies",
}

const policy = "managed/00-kitbox.json"

// firefox is the one file that Firefox reads. It goes before those that an image may
// have beside the program, which would be replaced.
const firefox = "/etc/firefox/policies/policies.json"

var firefoxes = []string{"/usr/lib/firefox", "/usr/lib/firefox-esr", "/usr/lib64/firefox", "/usr/share/firefox-esr", "/opt/firefox"}

// browse makes browsers trust certs, whose files are anchors.
func browse(exists func(string) bool, certs, anchors []string, add func(plan.BootFile)) {
	var ders []string
	for _, c := range certs {
		for block, rest := pem.Decode([]byte(c)); block != nil; block, rest = pem.Decode(rest) {
			ders = append(ders, base64.StdEncoding.EncodeToString(block.Bytes))
		}
	}
	for _, dir := range policies {
		add(plan.BootFile{Path: path.Join(dir, policy), Content: text(map[string]any{"CACertificates": ders})})
	}
	own := slices.ContainsFunc(firefoxes, func(dir string) bool { return exists(path.Join(dir, "distribution/policies.json")) })
	if !own && !exists(firefox) {
		add(plan.BootFile{Path: firefox, Content: text(map[string]any{"policies": map[string]any{"Certificates": map[string]any{"Install": anchors}}})})
	}
}

// text is v, of texts, as a file of JSON.
func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b) + "\n"
}
