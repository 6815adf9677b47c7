// Package usbdevice is the grammar of the usb-device capability: devices that
// are passed through to the sandbox, by vendor and product or by class.
package usbdevice

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/merge"
)

// Type is the wire name.
const Type = capability.Namespace + "/usb-device@1"

// A Config is one match: either both ids or a class.
type Config struct {
	VendorID  string `json:"vendorId,omitzero"`  // four hexadecimal digits
	ProductID string `json:"productId,omitzero"` // four hexadecimal digits
	Class     string `json:"class,omitzero"`     // name of a device class, e.g. smart-card
}

// Match returns what identifies the match: vendor:product in lower case, or
// class:NAME.
func (c Config) Match() string {
	if c.Class != "" {
		return "class:" + c.Class
	}
	return strings.ToLower(c.VendorID + ":" + c.ProductID)
}

// Decode returns the config of r if it is valid. The error is a
// [capability.InvalidError].
func Decode(r capability.Request) (Config, error) {
	return capability.DecodeValid(Type, r, (*Config).judge)
}

// Encode returns the request for c, or the error [Decode] would give for it.
func (c Config) Encode() (capability.Request, error) {
	return capability.EncodeValid(Type, c, (*Config).judge)
}

//go:embed schema.json
var schema []byte

var definition = capability.Definition{
	Types:   []string{Type},
	Arity:   capability.Instance,
	Inspect: capability.Inspecting((*Config).judge),
	Merge:   mergeAll,
	Schema:  func(string) []byte { return schema },
}

// Definition returns the grammar of the type.
func Definition() capability.Definition { return definition }

func (c *Config) judge(f capability.Form, _ capability.Open, in *capability.Inspection) {
	ids := c.VendorID != "" || c.ProductID != ""
	switch {
	case !ids && c.Class == "":
		in.Problem("config", "matches nothing: state vendorId and productId, or class")
	case ids && c.Class != "":
		in.Problem("config", "states ids and a class: a device is matched by one or the other")
	case ids && c.VendorID == "":
		in.Problem("config.vendorId", "is required beside productId")
	case ids && c.ProductID == "":
		in.Problem("config.productId", "is required beside vendorId")
	}
	if c.VendorID != "" && !id(c.VendorID) && !f.Waits(c.VendorID) {
		in.Problem("config.vendorId", fmt.Sprintf("%q is not four hexadecimal digits", c.VendorID))
	}
	if c.ProductID != "" && !id(c.ProductID) && !f.Waits(c.ProductID) {
		in.Problem("config.productId", fmt.Sprintf("%q is not four hexadecimal digits", c.ProductID))
	}
	if c.Class != "" && strings.TrimSpace(c.Class) != c.Class {
		in.Problem("config.class", fmt.Sprintf("%q begins or ends with a blank", c.Class))
	}
	in.Line(capability.ListUSBDevices, c.Match())
}

func id(s string) bool { return len(s) == 4 && strings.Trim(s, "0123456789abcdefABCDEF") == "" }

// mergeAll unites the matches.
func mergeAll(mode capability.MergeMode, cs []capability.Contribution) ([]capability.Contribution, []capability.Conflict) {
	return merge.Instances(mode, cs, func(c capability.Contribution) (string, bool) {
		config, err := Decode(c.Request)
		return config.Match(), err == nil
	}, merge.Restated)
}
