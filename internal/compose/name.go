package compose

import (
	"crypto/rand"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/kitbox-dev/kitbox/sandbox"
)

var notInName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[^a-z0-9]+`) })

// Name is the name that is asked for, or one made up from the first Kit: a
// person recognizes it, and four random characters keep it apart from others.
func Name(o sandbox.CreateOptions) string {
	if o.Name != "" {
		return o.Name
	}
	base := "sandbox"
	if len(o.Kits) > 0 {
		ref := strings.TrimSuffix(o.Kits[0], "/")
		if i := strings.IndexByte(ref, '@'); i > 0 {
			ref = ref[:i]
		}
		last := path.Base(ref)
		if i := strings.IndexByte(last, ':'); i > 0 {
			last = last[:i]
		}
		for _, ext := range []string{".yaml", ".yml", ".dockerfile"} {
			last = strings.TrimSuffix(last, ext)
		}
		if s := strings.Trim(notInName().ReplaceAllString(strings.ToLower(last), "-"), "-"); s != "" {
			base = s
		}
	}
	if len(base) > 40 {
		base = strings.Trim(base[:40], "-")
	}
	return base + "-" + strings.ToLower(rand.Text()[:4])
}

// hostname makes a host name of a sandbox name, which may have dots and
// underscores that a resolver would stumble over.
func hostname(name string) string {
	h := strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, name), "-")
	if h == "" {
		return "sandbox"
	}
	return h
}
