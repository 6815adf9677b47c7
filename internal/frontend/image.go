package frontend

import (
	"context"

	"github.com/moby/buildkit/frontend/gateway/grpcclient"
)

// RunInImage builds one Kit for the BuildKit that runs this process in a
// container, as it does with the image that a syntax line names. Its gateway is
// on standard input and output.
func (b Builder) RunInImage(ctx context.Context) error {
	return grpcclient.RunFromEnvironment(ctx, b.Build)
}
