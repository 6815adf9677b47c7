package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/kitbox-dev/kitbox/internal/needs"
)

// theirs returns the path of a program that somebody else wrote.
func theirs(t *testing.T, name, how string) string {
	t.Helper()
	if p := filepath.Join(bin, "tools", name); isFile(p) {
		return p
	}
	return needs.Program(t, name, how)
}

func isFile(p string) bool {
	st, err := os.Stat(p)
	return err == nil && st.Mode().IsRegular()
}

// private has a home and a builder of its own, since what a registry stands in for
// concerns a whole home.
type private struct {
	*testing.T
	home string
}

func newPrivate(t *testing.T) private {
	t.Helper()
	p := private{t, filepath.Join(t.TempDir(), "home")}
	if err := os.MkdirAll(p.home, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-al", filepath.Join(home, "images"), filepath.Join(p.home, "images")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := command(ctx, "kit-builder", "stop")
		cmd.Env = append(cmd.Env, "KITBOX_HOME="+p.home)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("kit-builder stop: %v\n%s", err, out)
		}
	})
	return p
}

func (p private) ok(args ...string) string {
	p.Helper()
	cmd := command(p.Context(), "kitbox", args...)
	cmd.Env = append(cmd.Env, "KITBOX_HOME="+p.home)
	o := finish(p.T, cmd)
	if o.Code != 0 {
		p.Fatalf("kitbox %s: %+v", strings.Join(args, " "), o)
	}
	return strings.TrimSpace(o.Stdout)
}

// root is the digest of an image of the store.
func (p private) root(ref string) string {
	p.Helper()
	var im struct{ Root string }
	if err := json.Unmarshal([]byte(p.ok("image", "inspect", ref)), &im); err != nil {
		p.Fatal(err)
	}
	return im.Root
}

// run runs a program in dir, which must go well.
func (p private) run(dir, program string, args ...string) string {
	p.Helper()
	out, err := p.try(dir, program, args...)
	if err != nil {
		p.Fatalf("%s %s: %v\n%s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
	return out
}

func (p private) try(dir, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.Context()), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// frontendAt makes the image that syntax lines name and pushes it.
func (p private) frontendAt(ref string) {
	p.Helper()
	dir := p.TempDir()
	program := filepath.Join(dir, "kit-frontend")
	p.Setenv("CGO_ENABLED", "0")
	// Of the same version, which is on what it builds.
	said := strings.Fields(p.run(repo, filepath.Join(bin, "kit-builder"), "version"))
	stamp := "-s -w -X main.version=" + said[1]
	if len(said) > 2 {
		stamp += " -X main.revision=" + said[2]
	}
	p.run(repo, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", stamp, "-o", program, "./cmd/kit-frontend")
	p.run(repo, "go", "run", "./internal/frontend/bundle", "--dir", dir, "--tag", "kitbox.local/sandbox-kit:3", "--push", ref, hostPlatform()+"="+program)
}

// TestStockClientsBuildWhatKitboxBuilds has buildctl, buildx and docker build Kits
// over the builder's socket, into a registry and a layout: by what is built in there for
// the image that the syntax line names, and by that image.
func TestStockClientsBuildWhatKitboxBuilds(t *testing.T) {
	buildctl := theirs(t, "buildctl", "run scripts/tools")
	buildx := theirs(t, "buildx", "run scripts/tools")
	host := validating(t)
	p := newPrivate(t)
	mirrors := `{"version":1,"mirrors":{"docker.io":[{"host":"` + host + `","tags":true}]}}`
	if err := os.WriteFile(filepath.Join(p.home, "registries.json"), []byte(mirrors), 0o600); err != nil {
		t.Fatal(err)
	}
	// The mirror has none by the name in the syntax line, which what is built in stands in for.
	image := host + "/ours/sandbox-kit:3"
	p.frontendAt(image)
	p.ok("push", "-q", "kitbox.local/base:1", "as", host+"/library/base:1")
	kits := map[string]string{
		"a workload": write(t, map[string]string{
			"kit.yaml":       "# syntax=docker/sandbox-kit:3\nschemaVersion: \"3\" # kept\nkind: workload\ndisplayName: Stock\nprovides: [stock@1.0]\nargs:\n  who: {default: me, pattern: '[a-z]+', buildArg: WHO}\n",
			"kit.dockerfile": "FROM base:1\nARG WHO\nUSER root\nRUN echo $WHO >/who\nUSER agent\nENV A=b\nCMD [\"bash\"]\n"}),
		"a mixin": write(t, map[string]string{
			"kit.yaml": "# syntax=docker/sandbox-kit:3\nschemaVersion: \"3\"\nkind: mixin\nprovides: [m@1.0]\ncapabilities:\n  - type: com.docker.sandbox/agent-context@1\n    config: {contentFile: guide.md}\nbuild: |\n  FROM scratch\n  COPY guide.md /opt/guide.md\n",
			"guide.md": "guide\n"}),
	}
	kitbox := map[string]string{}
	for name, dir := range kits {
		kitbox[name] = p.ok("build", "-q", "--no-cache", dir)
	}
	show := command(t.Context(), "kit-builder", "status")
	show.Env = append(show.Env, "KITBOX_HOME="+p.home)
	var builder struct{ Address string }
	if said := finish(t, show); json.Unmarshal([]byte(said.Stdout), &builder) != nil || !strings.HasPrefix(builder.Address, "unix:///") {
		t.Fatalf("kit-builder status: %+v", said)
	}
	socket := builder.Address

	config := filepath.Join(t.TempDir(), "docker")
	if err := os.MkdirAll(filepath.Join(config, "cli-plugins"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(buildx, filepath.Join(config, "cli-plugins", "docker-buildx")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", config)
	t.Setenv("BUILDX_CONFIG", filepath.Join(config, "buildx"))
	// Steps run by themselves when they have another network, and then a file's time
	// is another.
	const net = "--network=none"
	// docker hands "docker buildx" to the plugin; without docker it is a program.
	client := []string{buildx}
	if docker, err := exec.LookPath("docker"); err == nil {
		client = []string{docker, "buildx"}
	}
	x := func(dir string, args ...string) string {
		t.Helper()
		return p.run(dir, client[0], append(client[1:len(client):len(client)], args...)...)
	}
	x(repo, "create", "--name", "kits", "--driver", "remote", socket)

	for name, dir := range kits {
		want := kitbox[name]
		ref := host + "/stock/" + strings.ReplaceAll(name, " ", "-")
		x(dir, "build", "--builder", "kits", "--provenance=false", net, "-f", "kit.yaml", "-t", ref+":buildx", "--push", "--metadata-file", filepath.Join(config, "meta.json"), ".")
		if got := digestIn(t, filepath.Join(config, "meta.json")); got != want {
			t.Errorf("%s by buildx: %s; by kitbox %s", name, got, want)
		}
		if judge := finish(t, command(t.Context(), "kit-tck", "validate", ref+":buildx")); judge.Code != 0 {
			t.Errorf("kit-tck of %s: %+v", name, judge)
		}
		x(dir, "build", "--builder", "kits", "--provenance=false", net, "-f", "kit.yaml", "--build-arg", "BUILDKIT_SYNTAX="+image, "-t", ref+":image", "--push", "--metadata-file", filepath.Join(config, "meta.json"), ".")
		if got := digestIn(t, filepath.Join(config, "meta.json")); got != want {
			t.Errorf("%s by buildx with the frontend's image: %s; by kitbox %s", name, got, want)
		}
		// Into a layout, and from there into the store.
		out := filepath.Join(t.TempDir(), "layout")
		x(dir, "build", "--builder", "kits", "--provenance=false", net, "-f", "kit.yaml", "--output", "type=oci,tar=false,name=kitbox.local/stock:1,dest="+out, ".")
		p.ok("image", "load", "-i", out)
		if got := p.root("kitbox.local/stock:1"); got != want {
			t.Errorf("%s by buildx as a layout: %s; by kitbox %s", name, got, want)
		}
		// buildx states where an image comes from unless it is told not to, and
		// makes an index for that.
		x(dir, "build", "--builder", "kits", net, "-f", "kit.yaml", "-t", ref+":attested", "--push", ".")
		if judge := finish(t, command(t.Context(), "kit-tck", "validate", ref+":attested")); judge.Code != 0 {
			t.Errorf("kit-tck of %s with an attestation: %+v", name, judge)
		}
		p.run(dir, buildctl, "--addr", socket, "build", "--frontend", "dockerfile.v0", "--local", "context=.", "--local", "dockerfile=.", "--opt", "filename=kit.yaml", "--opt", "force-network-mode=none",
			"--output", "type=image,push=true,name="+ref+":buildctl", "--metadata-file", filepath.Join(config, "meta.json"))
		if got := digestIn(t, filepath.Join(config, "meta.json")); got != want {
			t.Errorf("%s by buildctl: %s; by kitbox %s", name, got, want)
		}
		p.ok("pull", "-q", ref+":buildctl")
	}
	// A set of Kits, whose files have names of their own.
	member := write(t, map[string]string{"tool.yaml": "# syntax=docker/sandbox-kit:3\nschemaVersion: \"3\"\nkind: mixin\nprovides: [tool@1.0]\nbuild: |\n  FROM scratch\n  COPY note.txt /opt/tool.txt\n", "note.txt": "tool\n"})
	x(member, "build", "--builder", "kits", "--provenance=false", "-f", "tool.yaml", "-t", host+"/stock/tool:1", "--push", ".")
	team := write(t, map[string]string{"team.yaml": "# syntax=docker/sandbox-kit:3\nschemaVersion: \"3\"\nkind: set\nversion: \"1.0\"\nprovides: [team]\nargs:\n  registry: {required: true, buildArg: registry}\nkits:\n" +
		"  - ref: ${{ kit.args.registry }}/stock/tool:1\n  - ref: ${{ kit.args.registry }}/stock/a-workload:buildx\n"})
	want := p.ok("build", "-q", "--arg", "registry="+host, team)
	x(team, "build", "--builder", "kits", "--provenance=false", "-f", "team.yaml", "--build-arg", "registry="+host, "-t", host+"/stock/team:1", "--push", "--metadata-file", filepath.Join(config, "meta.json"), ".")
	if got := digestIn(t, filepath.Join(config, "meta.json")); got != want {
		t.Errorf("a set by buildx: %s, by kitbox %s", got, want)
	}
	p.run(team, buildctl, "--addr", socket, "build", "--frontend", "gateway.v0", "--opt", "source="+image, "--local", "context=.", "--local", "dockerfile=.", "--opt", "filename=team.yaml", "--opt", "build-arg:registry="+host,
		"--output", "type=image,push=true,name="+host+"/stock/team:2", "--metadata-file", filepath.Join(config, "meta.json"))
	if got := digestIn(t, filepath.Join(config, "meta.json")); got != want {
		t.Errorf("a set by buildctl: %s, by kitbox %s", got, want)
	}
	x(team, "build", "--builder", "kits", "-f", "team.yaml", "--build-arg", "registry="+host, "-t", host+"/stock/team:3", "--push", ".") // with an attestation
	for _, tag := range []string{"1", "3"} {
		if judge := finish(t, command(t.Context(), "kit-tck", "validate", "--kits", host+"/stock/team:"+tag)); judge.Code != 0 {
			t.Errorf("kit-tck of the set: %+v", judge)
		}
	}
	if out, err := p.try(team, client[0], append(client[1:len(client):len(client)], "build", "--builder", "kits", "-f", "team.yaml", "--build-arg", "registry="+host+"/gone", "--output", "type=cacheonly", ".")...); err == nil || !strings.Contains(out, "team.yaml:9") || !strings.Contains(out, ">>>   - ref: ${{ kit.args.registry }}/stock/tool:1") {
		t.Errorf("a set of what is not there by buildx: %v\n%s", err, out)
	}
	// Args go by the Kit's names and are judged, and errors have their place.
	dir := kits["a workload"]
	if out, err := p.try(dir, client[0], append(client[1:len(client):len(client)], "build", "--builder", "kits", "-f", "kit.yaml", "--build-arg", "who=X1", "--output", "type=cacheonly", ".")...); err == nil || !strings.Contains(out, "kit.yaml:6") || !strings.Contains(out, "who") {
		t.Errorf("a bad arg by buildx: %v\n%s", err, out)
	}
	x(dir, "build", "--builder", "kits", "--provenance=false", net, "-f", "kit.yaml", "--build-arg", "who=you", "-t", host+"/stock/arg:1", "--push", "--metadata-file", filepath.Join(config, "meta.json"), ".")
	if got, want := digestIn(t, filepath.Join(config, "meta.json")), p.ok("build", "-q", "--arg", "who=you", dir); got != want {
		t.Errorf("with an arg: %s by buildx, %s by kitbox", got, want)
	}
	// Stock clients have no network in steps either unless they ask, and then the
	// public one only.
	probe := write(t, map[string]string{"kit.yaml": "# syntax=docker/sandbox-kit:3\nschemaVersion: \"3\"\nkind: mixin\nprovides: [n@1]\n",
		"kit.dockerfile": "FROM base:1 AS x\nUSER root\nRUN ! curl -sS --max-time 5 http://" + host + "/v2/ && mkdir /o && echo held >/o/n\nFROM scratch\nCOPY --from=x /o /opt\n"})
	x(probe, "build", "--builder", "kits", "-f", "kit.yaml", "--output", "type=cacheonly", ".")
	if out, err := p.try(probe, client[0], append(client[1:len(client):len(client)], "build", "--builder", "kits", "--network", "host", "-f", "kit.yaml", "--output", "type=cacheonly", ".")...); err == nil {
		t.Errorf("the host's network without consent:\n%s", out)
	}
}

func digestIn(t *testing.T, metadata string) string {
	t.Helper()
	data, err := os.ReadFile(metadata)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]json.RawMessage
	var d string
	if err := errors.Join(json.Unmarshal(data, &m), json.Unmarshal(m["containerimage.digest"], &d)); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return d
}

// TestSkopeoCarriesKits takes a Kit through somebody else's program in every form
// that it has here: a registry, a directory, a layout and both archives. docker load
// needs a daemon; skopeo reads docker's archives in its place.
func TestSkopeoCarriesKits(t *testing.T) {
	skopeo := theirs(t, "skopeo", "apt install skopeo")
	host := validating(t)
	p := newPrivate(t)
	ref := host + "/kits/piece:1"
	want := p.ok("build", "-q", "-t", ref, "--push", piece(t))
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	carry := func(from, to string, more ...string) {
		t.Helper()
		p.run(dir, skopeo, append([]string{"--insecure-policy", "copy", "--quiet", "--preserve-digests", "--src-tls-verify=false", "--dest-tls-verify=false", from, to}, more...)...)
	}
	back := func(how, file string) {
		t.Helper()
		fresh := newPrivate(t)
		if err := os.RemoveAll(filepath.Join(fresh.home, "images")); err != nil {
			t.Fatal(err)
		}
		cmd := command(t.Context(), "kitbox", "image", "load", "-i", file)
		cmd.Env = append(cmd.Env, "KITBOX_HOME="+fresh.home)
		o := finish(t, cmd)
		if o.Code != 0 {
			t.Errorf("%s: %+v", how, o)
			return
		}
		if got := fresh.root(strings.TrimSpace(o.Stdout)); got != want {
			t.Errorf("%s: %s, want %s", how, got, want)
		}
	}
	p.ok("image", "save", "-o", at("kitbox.tar"), ref)
	for how, from := range map[string]string{
		"a registry":     "docker://" + ref,
		"a store":        "oci:" + filepath.Join(p.home, "images") + ":" + ref,
		"a saved layout": "oci-archive:" + at("kitbox.tar") + ":" + ref,
	} {
		name := strings.ReplaceAll(how, " ", "-")
		carry(from, "dir:"+at(name+".dir"))
		manifest, err := os.ReadFile(at(name + ".dir/manifest.json"))
		if err != nil || digestOf(manifest) != want {
			t.Errorf("%s as a directory: %s, %v; want %s", how, digestOf(manifest), err, want)
		}
		carry("dir:"+at(name+".dir"), "docker://"+host+"/kits/"+name+":1")
		p.ok("pull", "-q", host+"/kits/"+name+"@"+want)
		carry(from, "oci-archive:"+at(name+".tar")+":kitbox.local/back:1")
		back(how+" as an archive", at(name+".tar"))
		carry(from, "oci:"+at(name+".oci")+":kitbox.local/back:1")
		back(how+" as a layout", at(name+".oci"))
	}
	// Docker's older form has no annotations and no manifest of its own; what it
	// holds is the image, by config and layers.
	p.run(dir, skopeo, "--insecure-policy", "copy", "--quiet", "docker-archive:"+at("kitbox.tar"), "dir:"+at("old"))
	config := func(file string) string {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var m struct{ Config struct{ Digest string } }
		if err := json.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
		return m.Config.Digest
	}
	if a, b := config(at("old/manifest.json")), config(at("a-registry.dir/manifest.json")); a != b {
		t.Errorf("as docker load reads it: config %s, want %s", a, b)
	}
}

func hostPlatform() string { return "linux/" + runtime.GOARCH }

func digestOf(data []byte) string { return digest.FromBytes(data).String() }
