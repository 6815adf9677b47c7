package rule

import (
	"slices"
	"strings"

	"github.com/kitbox-dev/kitbox/resolve/packages"
	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/constraint"
	"github.com/kitbox-dev/kitbox/tck/artifact/tree"
)

// database returns the package databases of an image. A link in the way, such as
// /lib into /usr, is followed.
func (im *Image) database() packages.Database {
	dpkg, _ := tree.Text(im.Files, packages.DpkgStatus)
	apk, _ := tree.Text(im.Files, packages.ApkInstalled)
	return packages.Database{Dpkg: dpkg, Apk: apk}
}

// stated returns the entries of derived namespaces.
func (j *judge) stated() []string {
	return slices.DeleteFunc(slices.Clone(j.doc.Provides), func(entry string) bool {
		p, err := constraint.ParseProvide(entry)
		return err != nil || !p.Name.Derived()
	})
}

func (j *judge) packagesOfMixin() {
	if j.doc.Kind == spec.KindWorkload {
		j.skip("a workload")
		return
	}
	for _, entry := range j.stated() {
		j.fail(nil, "provides", "%s is a package, and the Kit is no workload", entry)
	}
}

// A doubt is why an image does not bear out a stated package.
type doubt string

const (
	absent    doubt = "is not installed"
	otherwise doubt = "is installed in another version"
	unclear   doubt = "is installed in a version that cannot be stated"
)

// derives reports whether packages are judged at all.
func (j *judge) derives() bool {
	switch {
	case j.doc.Kind != spec.KindWorkload:
		j.skip("not a workload")
	case len(j.doc.Kits) > 0:
		j.skip("a set takes the packages of its Kits and derives none")
	default:
		return true
	}
	return false
}

// doubts returns what stated packages im does not bear out, and why.
func (im *Image) doubts(stated []string) map[string]doubt {
	db := im.database()
	out := map[string]doubt{}
	have := map[string]bool{}
	for _, entry := range packages.Derive([]packages.Database{db}) {
		name, _, _ := strings.Cut(entry, "@")
		have[name] = true
	}
	for _, entry := range packages.Check(stated, db) {
		name, _, _ := strings.Cut(entry, "@")
		space, base, _ := strings.Cut(name, "/")
		switch {
		case have[name]:
			out[entry] = otherwise
		case space == constraint.NamespaceDeb && installed(db.Dpkg, "Package", base), space == constraint.NamespaceApk && installed(db.Apk, "P", base):
			out[entry] = unclear
		default:
			out[entry] = absent
		}
	}
	return out
}

// installed reports whether a database has the package in a state that counts.
func installed(text, field, name string) bool {
	for stanza := range strings.SplitSeq("\n"+strings.ReplaceAll(text, "\r", ""), "\n\n") {
		if !strings.Contains(stanza+"\n", "\n"+field+":"+name+"\n") && !strings.Contains(stanza+"\n", "\n"+field+": "+name+"\n") && !strings.HasPrefix(stanza, field+": "+name+"\n") && !strings.HasPrefix(stanza, field+":"+name+"\n") {
			continue
		}
		if field == "P" || strings.Contains(stanza+"\n", " installed\n") {
			return true
		}
	}
	return false
}

// borne calls report for each image that does not bear out an entry though no
// other one does either, when why is the reason.
func (j *judge) borne(why doubt) {
	if !j.derives() {
		return
	}
	all := make([]map[string]doubt, len(j.Images))
	for i, im := range j.Images {
		all[i] = im.doubts(j.stated())
	}
	for i, im := range j.Images {
		for _, entry := range j.stated() {
			if all[i][entry] == why && everywhere(all, entry) {
				j.fail(im, "provides", "%s %s", entry, why)
			}
		}
	}
}

func everywhere(all []map[string]doubt, entry string) bool {
	return !slices.ContainsFunc(all, func(m map[string]doubt) bool { return m[entry] == "" })
}

func (j *judge) installed()  { j.borne(absent) }
func (j *judge) core()       { j.borne(otherwise) }
func (j *judge) prerelease() { j.borne(unclear) }

// agreed finds packages that some platforms bear out and others do not.
func (j *judge) agreed() {
	if !j.derives() {
		return
	}
	if len(j.Images) < 2 {
		j.skip("one platform is judged")
		return
	}
	all := make([]map[string]doubt, len(j.Images))
	for i, im := range j.Images {
		all[i] = im.doubts(j.stated())
	}
	for i, im := range j.Images {
		for _, entry := range j.stated() {
			if why := all[i][entry]; why != "" && !everywhere(all, entry) {
				j.fail(im, "provides", "%s %s on %s", entry, why, im.Platform)
			}
		}
	}
}

// unstated finds packages that all platforms have and nobody states.
func (j *judge) unstated() {
	if !j.derives() {
		return
	}
	if j.Partial {
		j.skip("not all platforms are judged")
		return
	}
	var dbs []packages.Database
	for _, im := range j.Images {
		dbs = append(dbs, im.database())
	}
	var names []string
	for _, entry := range j.stated() {
		name, _, _ := strings.Cut(entry, "@")
		names = append(names, name)
	}
	var missing []string
	for _, entry := range packages.Derive(dbs) {
		if name, _, _ := strings.Cut(entry, "@"); !slices.Contains(names, name) {
			missing = append(missing, entry)
		}
	}
	if n := len(missing); n > 0 {
		j.fail(nil, "provides", "%d installed packages are not stated: %s", n, strings.Join(missing[:min(few, n)], ", "))
	}
}
