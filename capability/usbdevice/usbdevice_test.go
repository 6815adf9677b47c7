package usbdevice_test

import (
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/usbdevice"
)

func TestCheck(t *testing.T) {
	ct.Check(t, usbdevice.Definition(), usbdevice.Type, []ct.Case{
		{Config: `{"vendorId":"1050","productId":"04aF"}`},
		{Config: `{"class":"smart-card"}`},
		{Config: `{}`, Want: []string{"config"}},
		{Config: `{"vendorId":"","class":""}`, Want: []string{"config"}},
		{Config: `{"vendorId":"1050","productId":"0407","class":"hid"}`, Want: []string{"config"}},
		{Config: `{"vendorId":"1050","class":"hid"}`, Want: []string{"config"}},
		{Config: `{"vendorId":"1050"}`, Want: []string{"config.productId"}},
		{Config: `{"productId":"1050"}`, Want: []string{"config.vendorId"}},
		{Config: `{"vendorId":"0x1050","productId":"407"}`, Want: []string{"config.vendorId", "config.productId"}},
		{Config: `{"vendorId":1050,"productId":"0407"}`, Want: []string{"config"}},
		{Config: `{"class":" hid"}`, Want: []string{"config.class"}},
		{Config: `{"vendorId":"${{ kit.args.v }}","productId":"0407"}`},
		// Presence does not wait for values.
		{Config: `{"vendorId":"${{ kit.args.v }}"}`, Want: []string{"config.productId"}},
	})
}

func TestMatchIsTheIdentity(t *testing.T) {
	d := usbdevice.Definition()
	ct.Lines(t, d, ct.Request(usbdevice.Type, `{"vendorId":"1050","productId":"04AF"}`), "usbDevices 1050:04af")
	ct.Lines(t, d, ct.Request(usbdevice.Type, `{"class":"hid"}`), "usbDevices class:hid")
	ct.Claims(t, d, ct.Request(usbdevice.Type, `{"class":"hid"}`))
	ct.Merged(t, d, capability.MergeRuntime, []capability.Contribution{
		ct.From("a", usbdevice.Type, `{"class":"hid"}`), ct.From("b", usbdevice.Type, `{"vendorId":"1050","productId":"0407"}`), ct.From("c", usbdevice.Type, `{"class":"hid"}`),
	}, []string{`usb-device@1 {"class":"hid"}`, `usb-device@1 {"vendorId":"1050","productId":"0407"}`})
}

func FuzzDecode(f *testing.F) {
	ct.RoundTrip(f, usbdevice.Definition(), usbdevice.Decode, append(ct.Hostile, `{"class":"hid"}`, `{"vendorId":"1050","productId":"0407"}`)...)
}
