// Package registrytest is a registry for tests that validates what it is sent: blobs
// against their digests, and manifests against the blobs that they name. It honours
// what a client says that it takes, and no manifest may be longer than 4 MiB.
package registrytest

import (
	"context"
	"io"
	"net/http"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem" // where it keeps blobs
	"github.com/sirupsen/logrus"
)

// Validating returns the registry that keeps its content below the directory dir,
// until ctx is done. Its in-memory storage is not used: that copies all that was
// written of a blob with each write, which for the layers of a base takes minutes.
func Validating(ctx context.Context, dir string) http.Handler {
	logrus.SetOutput(io.Discard)
	c := &configuration.Configuration{Storage: configuration.Storage{"filesystem": configuration.Parameters{"rootdirectory": dir}}}
	c.HTTP.Secret = "of a test"
	c.Catalog.MaxEntries = 10
	return handlers.NewApp(ctx, c)
}
