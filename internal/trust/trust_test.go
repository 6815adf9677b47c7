package trust

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/internal/plan"
)

func TestTrustAddsAndReplacesNothing(t *testing.T) {
	p := &plan.Plan{Launch: plan.Launch{Env: []string{"A=1", "NODE_EXTRA_CA_CERTS=/opt/mine.pem", "PIP_CERT=relative.pem"}}}
	there := []string{"/etc/pki/tls/certs/ca-bundle.crt", "/etc/pki/ca-trust/source/anchors"}
	Add(p, func(name string) bool { return slices.Contains(there, name) }, []string{"CERT\n"}, true)

	env := strings.Join(p.Launch.Env, " ")
	for _, want := range []string{"A=1", "NODE_EXTRA_CA_CERTS=/opt/mine.pem", "PIP_CERT=relative.pem", "SSL_CERT_FILE=/etc/pki/tls/certs/ca-bundle.crt", "DENO_CERT=" + anchor} {
		if !strings.Contains(env, want) {
			t.Errorf("%s is not in %s", want, env)
		}
	}
	if slices.Contains(p.Launch.Trust, "NODE_EXTRA_CA_CERTS") || !slices.Contains(p.Launch.Trust, "SSL_CERT_FILE") || !slices.IsSorted(p.Launch.Env) {
		t.Errorf("trust %v, env %v", p.Launch.Trust, p.Launch.Env)
	}
	files := map[string]plan.BootFile{}
	for _, f := range p.Machine.Files {
		if f.Content != "CERT\n" && !strings.HasSuffix(f.Path, ".json") {
			t.Errorf("%s holds %q", f.Path, f.Content)
		}
		files[f.Path] = f
	}
	for name, want := range map[string][2]bool{ // append, optional
		"/etc/pki/tls/certs/ca-bundle.crt":            {true, false},
		"/etc/ssl/certs/ca-certificates.crt":          {true, true},
		"/opt/mine.pem":                               {true, true},
		anchor:                                        {false, false},
		"/etc/pki/ca-trust/source/anchors/kitbox.crt": {false, false},
	} {
		if f, ok := files[name]; !ok || f.Append != want[0] || f.Optional != want[1] {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if _, ok := files["relative.pem"]; ok {
		t.Error("a relative path is one of nobody knows which directory")
	}
}

func TestWithoutAStoreOneIsMade(t *testing.T) {
	p := new(plan.Plan)
	Add(p, func(string) bool { return false }, []string{"CERT\n"}, true)
	i := slices.IndexFunc(p.Machine.Files, func(f plan.BootFile) bool { return f.Path == stores[0] })
	if i < 0 || p.Machine.Files[i].Optional {
		t.Errorf("files %+v", p.Machine.Files)
	}
}

func TestEverySandboxTrustsAndOnlySomeAreTold(t *testing.T) {
	p := &plan.Plan{Launch: plan.Launch{Env: []string{"A=1", "SSL_CERT_FILE=/opt/mine.pem"}}}
	Add(p, func(string) bool { return false }, []string{"CERT\n"}, false)
	if len(p.Launch.Env) != 2 || len(p.Launch.Trust) != 0 {
		t.Errorf("variables: %v", p.Launch.Env)
	}
	for _, f := range p.Machine.Files {
		if f.Path != anchor && !f.Java && (!f.Append || !f.Optional) {
			t.Errorf("a store is made: %+v", f)
		}
	}
	if !slices.ContainsFunc(p.Machine.Files, func(f plan.BootFile) bool { return f.Path == "/opt/mine.pem" }) {
		t.Errorf("files: %+v", p.Machine.Files)
	}

	p = new(plan.Plan)
	Add(p, func(string) bool { return false }, []string{"ONE\n", "TWO\n"}, true)
	files := map[string]string{}
	for _, f := range p.Machine.Files {
		files[f.Path] = f.Content
	}
	if files[anchor] != "ONE\n" || files["/usr/local/share/ca-certificates/kitbox-1.crt"] != "TWO\n" || files[bundle] != "ONE\nTWO\n" || files[stores[0]] != "ONE\nTWO\n" ||
		!slices.Contains(p.Launch.Env, "NODE_EXTRA_CA_CERTS="+bundle) {
		t.Errorf("files: %v, env: %v", files, p.Launch.Env)
	}
}

func TestContainersInsideTrustWhatTheMachineDoes(t *testing.T) {
	files := func(p *plan.Plan, variables bool, there ...string) map[string]plan.BootFile {
		Add(p, func(name string) bool { return slices.Contains(there, name) }, []string{"CERT\n"}, variables)
		out := map[string]plan.BootFile{}
		for _, f := range p.Machine.Files {
			out[f.Path] = f
		}
		return out
	}
	mighty := func() *plan.Plan { return &plan.Plan{Machine: plan.Machine{Capabilities: []string{"CAP_SYS_ADMIN"}}} }
	for what, have := range map[string]map[string]plan.BootFile{
		"an image with no engine":                       files(new(plan.Plan), true),
		"a machine whose connections nobody looks into": files(mighty(), false, "/usr/bin/podman"),
	} {
		if _, ok := have[runtime]; ok {
			t.Errorf("%s has the runtime", what)
		}
	}
	have := files(new(plan.Plan), true, "/usr/bin/dockerd", "/usr/sbin/runc", "/etc/ssl/ca-bundle.pem")
	if !have[runtime].Program || !have["/usr/local/sbin/runc"].Link || have["/usr/local/sbin/runc"].Content != runtime {
		t.Errorf("files: %+v", have)
	}
	if _, ok := have["/usr/local/sbin/crun"]; ok {
		t.Error("a runtime that the image has not can be found")
	}
	if c := have[nestedFor].Content; !strings.Contains(c, `"store":"/etc/ssl/ca-bundle.pem"`) || !strings.Contains(c, `"authorities":"`+anchor+`"`) || !strings.Contains(c, `"NODE_EXTRA_CA_CERTS"`) {
		t.Errorf("for containers: %s", c)
	}
	if !json.Valid([]byte(have[hook].Content)) || !strings.Contains(have[hook].Content, runtime) {
		t.Errorf("hook: %s", have[hook].Content)
	}
	have = files(mighty(), true, "/usr/bin/runc", "/usr/local/sbin/runc")
	if _, ok := have["/usr/local/sbin/runc"]; ok || !have[runtime].Program {
		t.Errorf("a runtime of the image's own there is replaced: %+v", have)
	}
}

func TestJavasStoresAreAddedTo(t *testing.T) {
	p := &plan.Plan{Launch: plan.Launch{Env: []string{"JAVA_HOME=/srv/jdk/"}}}
	Add(p, func(string) bool { return false }, []string{"ONE\n", "TWO\n"}, false)
	for _, want := range []string{"/etc/ssl/certs/java/cacerts", "/usr/lib/jvm/*/lib/security/cacerts", "/srv/jdk/lib/security/cacerts"} {
		if !slices.Contains(p.Machine.Files, plan.BootFile{Path: want, Content: "ONE\nTWO\n", Java: true}) {
			t.Errorf("%s is not in %+v", want, p.Machine.Files)
		}
	}
}

func TestBrowsersAreToldByPolicy(t *testing.T) {
	certs := []string{"-----BEGIN CERTIFICATE-----\nb25l\n-----END CERTIFICATE-----\n", "-----BEGIN CERTIFICATE-----\ndHdv\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\ndGhyZWU=\n-----END CERTIFICATE-----\n"}
	told := func(variables bool, there ...string) map[string]string {
		p := new(plan.Plan)
		Add(p, func(name string) bool { return slices.Contains(there, name) }, certs, variables)
		files := map[string]string{}
		for _, f := range p.Machine.Files {
			if strings.Contains(f.Path, "policies") {
				files[f.Path] = f.Content
				if f.Append || f.Optional {
					t.Errorf("%+v", f)
				}
			}
		}
		return files
	}
	files := told(true)
	for _, dir := range policies {
		if got := files[dir+"/managed/00-kitbox.json"]; got != `{"CACertificates":["b25l","dHdv","dGhyZWU="]}`+"\n" {
			t.Errorf("%s: %s", dir, got)
		}
	}
	const want = `{"policies":{"Certificates":{"Install":["/usr/local/share/ca-certificates/kitbox.crt","/usr/local/share/ca-certificates/kitbox-1.crt"]}}}` + "\n"
	if got := files[firefox]; got != want {
		t.Errorf("Firefox: %s", got)
	}
	for _, own := range []string{firefox, "/usr/lib/firefox-esr/distribution/policies.json"} {
		if got, ok := told(true, own)[firefox]; ok {
			t.Errorf("beside %s: %s", own, got)
		}
	}
	if files := told(false); len(files) != 0 {
		t.Errorf("where nothing is looked into: %v", files)
	}
}
