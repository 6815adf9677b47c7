package lint

import (
	"fmt"
	"strings"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/lint/shell"
	"github.com/kitbox-dev/kitbox/spec/lint/wordset"
)

// bare are official images without a user agent, and most without git.
var bare = wordset.Of(`alpine almalinux amazonlinux archlinux bash buildpack-deps busybox caddy centos debian eclipse-temurin elixir erlang fedora
	gcc golang haproxy httpd julia maven memcached mongo mysql nginx node openjdk oraclelinux perl php postgres python redis
	rockylinux ruby rust swift ubuntu`)

// workloadBase finds workloads whose recipe starts from an image known to lack
// the platform's floor and does not make up for it (§3.5, §12). Images it does
// not know, and file systems copied in whole, it lets pass.
func workloadBase(k *kit, report reporter) {
	if k.Kind != spec.KindWorkload {
		return
	}
	image, chain := k.recipe.Base()
	if image == "" || !isBare(image) {
		return
	}
	for _, s := range chain {
		if s.Adds {
			return
		}
		for _, run := range s.Runs {
			if run.Opaque {
				return
			}
			for _, cmd := range run.Commands {
				if makesAgent(cmd) {
					return
				}
			}
		}
	}
	at := "kind"
	if k.Build != "" {
		at = "build"
	}
	report(at, fmt.Sprintf("%s has no user agent (uid 1000), and maybe no bash, git and CA store, which content may assume: start from a sandbox base, or add them in the recipe", image))
}

func isBare(image string) bool {
	image, _, _ = strings.Cut(image, "@")
	image = strings.TrimPrefix(image, "docker.io/")
	image = strings.TrimPrefix(image, "library/")
	image, _, _ = strings.Cut(image, ":")
	return bare.Has(image) || strings.HasPrefix(image, "gcr.io/distroless/")
}

// makesAgent reports whether a command could add the user: by one of the usual
// programs, or by writing the account files itself.
func makesAgent(cmd []string) bool {
	joined := strings.Join(cmd, " ")
	for _, p := range []string{"useradd", "adduser", "usermod", "newusers", "groupmod"} {
		if strings.Contains(joined, p) {
			return strings.Contains(joined, "agent") || strings.Contains(joined, "1000") || strings.Contains(joined, shell.Unknown)
		}
	}
	return strings.Contains(joined, "agent:x:") || strings.Contains(joined, "/etc/passwd")
}
