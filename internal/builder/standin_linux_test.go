package builder

import "testing"

func TestTheBuiltInFrontendStandsInForItsReleases(t *testing.T) {
	for source, want := range map[string]bool{
		"docker/sandbox-kit:3":              true,
		"docker.io/docker/sandbox-kit:3":    true,
		"docker/sandbox-kit:3.1":            true,
		"docker/sandbox-kit:3.0.2":          true,
		"docker/sandbox-kit":                false,
		"docker/sandbox-kit:latest":         false,
		"docker/sandbox-kit:2":              false,
		"docker/sandbox-kit:30":             false,
		"docker/sandbox-kit:3-labs":         false,
		"ghcr.io/docker/sandbox-kit:3":      false,
		"docker/sandbox-kit-extra:3":        false,
		"localhost:5000/docker/sandbox-kit": false,
		"docker/sandbox-kit:3@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef": false,
		"":  false,
		"?": false,
	} {
		if got := isOurs(map[string]string{"source": source}); got != want {
			t.Errorf("%q: %v", source, got)
		}
	}
	for context, want := range map[string]bool{
		"docker/sandbox-kit:3":                true,
		"docker.io/docker/sandbox-kit:3":      true,
		"docker/sandbox-kit:3::linux/amd64":   true,
		"kitbox.local/base:1":                 false,
		"docker/dockerfile:1":                 false,
		"a name that is no reference, though": false,
	} {
		opts := map[string]string{"source": "docker/sandbox-kit:3", "context:" + context: "docker-image://example.com/x"}
		if got := isOurs(opts); got == want {
			t.Errorf("with a context for %q: %v", context, got)
		}
	}
}
