package app

import (
	"context"

	"github.com/kitbox-dev/kitbox/sandbox"
)

// Plan implements [sandbox.Runtime].
func (u unavailable) Plan(context.Context, sandbox.CreateOptions) (*sandbox.Plan, error) {
	return nil, u.fail()
}

// Create implements [sandbox.Runtime].
func (u unavailable) Create(context.Context, sandbox.CreateOptions) (sandbox.Sandbox, error) {
	return nil, u.fail()
}

// Open implements [sandbox.Runtime].
func (u unavailable) Open(context.Context, string) (sandbox.Sandbox, error) { return nil, u.fail() }

// List implements [sandbox.Runtime].
func (u unavailable) List(context.Context) ([]sandbox.Info, error) { return nil, u.fail() }

// Images implements [sandbox.ImageStore].
func (u unavailable) Images(context.Context) ([]sandbox.Image, error) { return nil, u.fail() }

// CreateBase implements [sandbox.ImageStore].
func (u unavailable) CreateBase(context.Context, sandbox.BaseOptions) (sandbox.Image, error) {
	return sandbox.Image{}, u.fail()
}

// Build implements [sandbox.Builder].
func (u unavailable) Build(context.Context, sandbox.BuildOptions) (sandbox.Image, error) {
	return sandbox.Image{}, u.fail()
}
