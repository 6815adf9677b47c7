package artifact_test

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content/oci"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/kitbox-dev/kitbox/spec"
	"github.com/kitbox-dev/kitbox/spec/annotation"
)

// TestTheKitsOfASetAreLookedUp publishes a set and the manifests of its Kits.
func TestTheKitsOfASetAreLookedUp(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer srv.Close()
	host := srv.Listener.Addr().String()
	p := withKits(t)
	p.images[0].describe(t, "both", strings.ReplaceAll(p.images[0].annotations[annotation.Descriptor], "r.example", host))
	dir := p.write(t)
	doc, err := spec.DecodePublished([]byte(p.images[0].annotations[annotation.Descriptor]))
	if err != nil {
		t.Fatal(err)
	}
	for n, name := range []string{"w", "m"} {
		d := digest.Digest(doc.Kits[n].Digest)
		b, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", d.Encoded()))
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, srv.URL+"/v2/"+name+"/manifests/"+d.String(), bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", ocispec.MediaTypeImageManifest)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			t.Fatal(resp.Status)
		}
	}
	src, err := oci.NewFromFS(t.Context(), os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	repo, err := remote.NewRepository(host + "/set")
	if err != nil {
		t.Fatal(err)
	}
	repo.PlainHTTP = true
	if _, err := oras.Copy(t.Context(), src, "kit", repo, "1", oras.DefaultCopyOptions); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "waived SPEC-v3 §9.5/layers-preserved"},
		{[]string{"--kits"}, "pass   SPEC-v3 §9.5/layers-preserved"},
	} {
		code, said := validate(t, append([]string{host + "/set:1", "--verbose"}, c.args...)...)
		if code != 0 || !strings.Contains(said, c.want) {
			t.Errorf("%q: %d\n%s", c.args, code, said)
		}
	}
}
