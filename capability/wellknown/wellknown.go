// Package wellknown is the list of the capability types whose grammar this
// module has. Everything else is opaque (§7.3).
package wellknown

import (
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/acp"
	"github.com/kitbox-dev/kitbox/capability/agentcontext"
	"github.com/kitbox-dev/kitbox/capability/agentinteractivesessions"
	"github.com/kitbox-dev/kitbox/capability/agentsessions"
	"github.com/kitbox-dev/kitbox/capability/agentskill"
	"github.com/kitbox-dev/kitbox/capability/agentskills"
	"github.com/kitbox-dev/kitbox/capability/credential"
	"github.com/kitbox-dev/kitbox/capability/dockerauth"
	"github.com/kitbox-dev/kitbox/capability/dockerd"
	"github.com/kitbox-dev/kitbox/capability/gitidentity"
	"github.com/kitbox-dev/kitbox/capability/hostmount"
	"github.com/kitbox-dev/kitbox/capability/hostport"
	"github.com/kitbox-dev/kitbox/capability/kitregistry"
	"github.com/kitbox-dev/kitbox/capability/lifecycle"
	"github.com/kitbox-dev/kitbox/capability/longrunning"
	"github.com/kitbox-dev/kitbox/capability/networkpolicy"
	"github.com/kitbox-dev/kitbox/capability/port"
	"github.com/kitbox-dev/kitbox/capability/privileged"
	"github.com/kitbox-dev/kitbox/capability/resources"
	"github.com/kitbox-dev/kitbox/capability/sbx"
	"github.com/kitbox-dev/kitbox/capability/sshagent"
	"github.com/kitbox-dev/kitbox/capability/usbdevice"
	"github.com/kitbox-dev/kitbox/capability/volume"
)

// Definitions returns the grammars in the order of their names. Adding a type
// is adding a line here and in Find.
func Definitions() []capability.Definition {
	return []capability.Definition{
		acp.Definition(),
		agentcontext.Definition(),
		agentinteractivesessions.Definition(),
		agentsessions.Definition(),
		agentskill.Definition(),
		agentskills.Definition(),
		credential.Definition(),
		dockerauth.Definition(),
		dockerd.Definition(),
		gitidentity.Definition(),
		hostmount.Definition(),
		hostport.Definition(),
		kitregistry.Definition(),
		lifecycle.Definition(),
		longrunning.Definition(),
		networkpolicy.Definition(),
		port.Definition(),
		privileged.Definition(),
		resources.Definition(),
		sbx.Definition(),
		sshagent.Definition(),
		usbdevice.Definition(),
		volume.Definition(),
	}
}

// Find returns the grammar that typ belongs to.
func Find(typ string) (capability.Definition, bool) {
	switch typ {
	case acp.Type:
		return acp.Definition(), true
	case agentcontext.Type:
		return agentcontext.Definition(), true
	case agentinteractivesessions.Type:
		return agentinteractivesessions.Definition(), true
	case agentsessions.Type:
		return agentsessions.Definition(), true
	case agentskill.Type:
		return agentskill.Definition(), true
	case agentskills.Type:
		return agentskills.Definition(), true
	case credential.Type:
		return credential.Definition(), true
	case dockerauth.Type:
		return dockerauth.Definition(), true
	case dockerd.Type:
		return dockerd.Definition(), true
	case gitidentity.Type:
		return gitidentity.Definition(), true
	case hostmount.Type:
		return hostmount.Definition(), true
	case hostport.Type:
		return hostport.Definition(), true
	case kitregistry.Type:
		return kitregistry.Definition(), true
	case lifecycle.Type:
		return lifecycle.Definition(), true
	case longrunning.Type:
		return longrunning.Definition(), true
	case networkpolicy.Type, networkpolicy.TypeV2:
		return networkpolicy.Definition(), true
	case port.Type:
		return port.Definition(), true
	case privileged.Type:
		return privileged.Definition(), true
	case resources.Type:
		return resources.Definition(), true
	case sbx.Type:
		return sbx.Definition(), true
	case sshagent.Type:
		return sshagent.Definition(), true
	case usbdevice.Type:
		return usbdevice.Definition(), true
	case volume.Type:
		return volume.Definition(), true
	}
	return capability.Definition{}, false
}
