package wellknown_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/acp"
	"github.com/kitbox-dev/kitbox/capability/agentcontext"
	"github.com/kitbox-dev/kitbox/capability/agentinteractivesessions"
	"github.com/kitbox-dev/kitbox/capability/agentsessions"
	"github.com/kitbox-dev/kitbox/capability/agentskill"
	"github.com/kitbox-dev/kitbox/capability/agentskills"
	"github.com/kitbox-dev/kitbox/capability/argv"
	ct "github.com/kitbox-dev/kitbox/capability/capabilitytest"
	"github.com/kitbox-dev/kitbox/capability/credential"
	"github.com/kitbox-dev/kitbox/capability/dockerauth"
	"github.com/kitbox-dev/kitbox/capability/hostmount"
	"github.com/kitbox-dev/kitbox/capability/hostport"
	"github.com/kitbox-dev/kitbox/capability/lifecycle"
	"github.com/kitbox-dev/kitbox/capability/networkpolicy"
	"github.com/kitbox-dev/kitbox/capability/phase"
	"github.com/kitbox-dev/kitbox/capability/port"
	"github.com/kitbox-dev/kitbox/capability/resources"
	"github.com/kitbox-dev/kitbox/capability/sshagent"
	"github.com/kitbox-dev/kitbox/capability/usbdevice"
	"github.com/kitbox-dev/kitbox/capability/volume"
	"github.com/kitbox-dev/kitbox/capability/wellknown"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// A sample pins one type: its Go config, and configs that both the decoder and
// the schema accept or both refuse. What only the decoder can refuse is in the
// tests of the type.
type sample struct {
	config reflect.Type // nil: config-less
	good   []string
	bad    []string
}

var samples = map[string]sample{
	acp.Type: {reflect.TypeFor[acp.Config](),
		[]string{`{"agent":"l","command":"x"}`, `{"agent":"com.example/l","command":["x","y"],"env":{"A":""},"protocolVersion":2}`, `{"agent":"l","command":"x","protocolVersion":"${{ kit.args.v }}"}`},
		[]string{`{}`, `{"agent":"l@1","command":"x"}`, `{"agent":"l","command":""}`, `{"agent":"l","command":[]}`, `{"agent":"l","command":"x","protocolVersion":0}`, `{"agent":"l","command":"x","env":{"A":1}}`}},
	agentcontext.Type: {reflect.TypeFor[agentcontext.Config](),
		[]string{`{"content":"x"}`, `{"filename":"A.md","directory":"/h/.x","contentFile":"./b.md"}`, `{"filename":"A.md","directory":"${{ kit.env.HOME }}/.x"}`},
		[]string{`{}`, `{"content":"x","contentFile":"y"}`, `{"directory":"/h"}`, `{"filename":"a/b","directory":"/h"}`, `{"filename":"A.md","directory":"h"}`}},
	agentinteractivesessions.Type: {reflect.TypeFor[agentinteractivesessions.Config](),
		[]string{`{"newSession":[]}`, `{"prompt":["{{.Prompt}}"],"resume":["-r={{.SessionID}}"],"continue":[],"sessionPicker":["-p"],"list":"ids"}`, `{"prompt":["${{ kit.args.p }}"]}`},
		[]string{`{}`, `{"prompt":["x"]}`, `{"prompt":[]}`, `{"list":""}`, `{"list":[]}`, `{"continue":"x"}`, `{"newSession":null}`}},
	agentsessions.Type: {reflect.TypeFor[agentsessions.Config](),
		[]string{`{"continue":["-c"],"prompt":[]}`, `{"prompt":["{{.Prompt}}"],"resume":["{{.SessionID}}"],"list":["ids"]}`},
		[]string{`{}`, `{"prompt":["x"]}`, `{"continue":"x"}`, `{"newSession":["x"]}`}},
	agentskill.Type: {reflect.TypeFor[agentskill.Config](),
		[]string{`{"path":"/opt/s"}`, `{"path":"/opt/${{ kit.args.s }}","name":"n"}`},
		[]string{`{}`, `{"path":"opt"}`, `{"path":"/opt/"}`, `{"path":"/opt","name":""}`, `{"path":"/opt","name":".x"}`}},
	agentskills.Type: {reflect.TypeFor[agentskills.Config](),
		[]string{`{"path":"/s"}`, `{"path":"/s","mode":"readwrite"}`, `{"path":"/s","mode":"${{ kit.args.m }}"}`},
		[]string{`{}`, `{"path":"/s/"}`, `{"path":"/s","mode":"rw"}`, `{"path":"/s","mode":null}`}},
	credential.Type: {reflect.TypeFor[credential.Config](),
		[]string{`{"service":"s","phase":"runtime","apiKey":{"name":"A"}}`,
			`{"service":"s-1","phase":["install","runtime"],"apiKey":{"name":"","inject":[{"domain":"a","header":"H","format":"%s","scheme":"basic","username":"u"}],"proxyManaged":true},"oauth":{"tokenEndpoint":{"host":"a","path":"/t"},"resourceHosts":["b"],"sentinels":{"accessToken":"x","refreshToken":"y"},"credentialFile":{"path":"~/c","format":"toml","structure":{"a":{"b":["{{.Scopes}}"]}}},"responseFields":{"accessToken":"a","refreshToken":"r","expiresIn":"e"},"passthrough":false}}`},
		[]string{`{"service":"s","phase":"runtime"}`, `{"service":"S","phase":"runtime","apiKey":{"name":"A"}}`, `{"service":"s","phase":[],"apiKey":{"name":"A"}}`, `{"service":"s","phase":"boot","apiKey":{"name":"A"}}`,
			`{"service":"s","phase":"runtime","apiKey":{}}`, `{"service":"s","phase":"runtime","apiKey":{"inject":[{"header":"H"}]}}`, `{"service":"s","phase":"runtime","apiKey":{"name":"A"},"oauth":{"credentialFile":{"path":"~/c","format":""}}}`}},
	dockerauth.Type: {reflect.TypeFor[dockerauth.Config](),
		[]string{`{"registry":"docker.io"}`, `{"registry":"localhost:5000"}`},
		[]string{`{}`, `{"registry":""}`, `{"registry":"https://ghcr.io"}`, `{"registry":"ghcr.io/x"}`}},
	hostmount.Type: {reflect.TypeFor[hostmount.Config](),
		[]string{`{"path":"/c"}`, `{"path":"${{ kit.env.HOME }}/c","mode":"0755"}`},
		[]string{`{}`, `{"path":"/c","mode":""}`, `{"path":"/c","hostPath":"/etc"}`, `{"path":"/c/"}`, `{"path":"/c","mode":755}`}},
	hostport.Type: {reflect.TypeFor[hostport.Config](),
		[]string{`{"port":1}`, `{"port":"${{ kit.args.p }}","transport":"udp","family":"ipv6","name":"n"}`},
		[]string{`{}`, `{"port":0}`, `{"port":65536}`, `{"port":1,"family":"ip"}`, `{"port":"1"}`}},
	lifecycle.Type: {reflect.TypeFor[lifecycle.Config](),
		[]string{`{"interactive":["x"]}`, `{"install":[{"command":"x","user":"0","env":["A"],"description":"d"}],"startup":[{"command":["x"],"background":true,"user":"u","env":[],"description":"d"}],"files":[{"path":"/x","content":"y","mode":"0644","overwrite":false,"description":"d"}],"interactive":[]}`},
		[]string{`{}`, `{"install":[{}]}`, `{"install":[{"command":""}]}`, `{"install":[{"command":"x","background":true}]}`, `{"files":[{"path":"x"}]}`, `{"startup":[{"command":"x","env":["A=1"]}]}`}},
	networkpolicy.Type: {reflect.TypeFor[networkpolicy.Config](),
		[]string{`{}`, `{"install":{"allow":["*"]},"runtime":{"allow":["a:443"],"deny":["b"]}}`},
		[]string{`{"runtime":{"allow":[{"hosts":["a"]}]}}`, `{"runtime":{"allow":[""]}}`, `{"runtime":{"allow":"a"}}`, `{"startup":{}}`}},
	networkpolicy.TypeV2: {reflect.TypeFor[networkpolicy.Config](),
		[]string{`{"install":{"allow":["*"]},"runtime":{"allow":["a:443",{"hosts":["a"],"methods":["GET"],"paths":["/x"]}],"deny":[{"hosts":["*.b"]}]}}`},
		[]string{`{"runtime":{"allow":[{"hosts":[]}]}}`, `{"runtime":{"allow":[{"hosts":["a"],"methods":[]}]}}`, `{"runtime":{"allow":[{"hosts":["a"],"paths":["/x"]}]}}`, `{"runtime":{"allow":[{"hosts":["a"],"methods":["get"]}]}}`}},
	port.Type: {reflect.TypeFor[port.Config](),
		[]string{`{"container":80}`, `{"container":80,"transport":"udp","name":"n"}`, `{"container":"${{ kit.args.p }}"}`},
		[]string{`{}`, `{"container":0}`, `{"container":"80"}`, `{"container":80,"transport":"sctp"}`, `{"container":null}`}},
	resources.Type: {reflect.TypeFor[resources.Config](),
		[]string{`{}`, `{"cpu":0.5,"memory":"8g","gpu":"all"}`, `{"cpu":"${{ kit.args.c }}"}`},
		[]string{`{"cpu":-1}`, `{"cpu":"4"}`, `{"memory":"lots"}`, `{"gpu":1}`}},
	sshagent.Type: {reflect.TypeFor[sshagent.Config](),
		[]string{`{"phase":"runtime"}`, `{"phase":["install"],"unrestricted":false,"sign":["git"],"authenticate":["git@github.com"]}`},
		[]string{`{}`, `{"phase":[]}`, `{"phase":"runtime","sign":["git"]}`, `{"phase":"runtime","unrestricted":false,"sign":[]}`, `{"phase":"runtime","unrestricted":false,"sign":["a","a"]}`, `{"phase":"runtime","unrestricted":false,"authenticate":["*.x"]}`}},
	usbdevice.Type: {reflect.TypeFor[usbdevice.Config](),
		[]string{`{"class":"hid"}`, `{"vendorId":"1050","productId":"0407"}`},
		[]string{`{}`, `{"vendorId":"1050"}`, `{"vendorId":"105","productId":"0407"}`}},
	volume.Type: {reflect.TypeFor[volume.Config](),
		[]string{`{"path":"/d"}`, `{"path":"/d/../e","size":"1.5g","tmpfs":true,"mode":"0755"}`, `{"path":"/d","size":"","mode":""}`, `{"path":"/d","size":"${{ kit.args.s }}","tmpfs":"${{ kit.args.t }}"}`},
		[]string{`{}`, `{"path":"d"}`, `{"path":"/d","size":"2x"}`, `{"path":"/d","mode":"999"}`, `{"path":"/d","tmpfs":"yes"}`, `{"path":"/d","Size":"1g"}`}},
}

func TestSchemaAndDecoderAgree(t *testing.T) {
	for _, d := range wellknown.Definitions() {
		for _, typ := range d.Types {
			s, ok := samples[typ]
			if !ok {
				s = sample{bad: []string{`{}`, `null`, `[]`, `{"a":1}`}}
			}
			schema := compile(t, typ, d.Schema(typ))
			for _, config := range s.good {
				if p := d.Check(ct.Request(typ, config), capability.Authored); len(p) > 0 {
					t.Errorf("%s: the decoder refuses %s: %+v", typ, config, p)
				}
				if err := schema.Validate(value(t, config)); err != nil {
					t.Errorf("%s: the schema refuses %s: %v", typ, config, err)
				}
			}
			for _, config := range s.bad {
				if p := d.Check(ct.Request(typ, config), capability.Authored); len(p) == 0 {
					t.Errorf("%s: the decoder accepts %s", typ, config)
				}
				if schema.Validate(value(t, config)) == nil {
					t.Errorf("%s: the schema accepts %s", typ, config)
				}
			}
		}
	}
}

// TestSchemaAndTypesAgree walks each schema beside the Go type of its config: a
// field that only one of them knows is either refused by editors though it
// works, or offered by them though it is an error.
func TestSchemaAndTypesAgree(t *testing.T) {
	for _, d := range wellknown.Definitions() {
		for _, typ := range d.Types {
			var root map[string]any
			if err := json.Unmarshal(d.Schema(typ), &root); err != nil {
				t.Errorf("%s: %v", typ, err)
				continue
			}
			s, ok := samples[typ]
			if root["title"] != typ || root["description"] == nil {
				t.Errorf("%s: schema is titled %v", typ, root["title"])
			}
			if !ok {
				if fmt.Sprint(root["not"]) != "map[]" || root["properties"] != nil {
					t.Errorf("%s: not the schema of a config-less type", typ)
				}
				continue
			}
			p := pin{t: t, root: root, v1: typ == networkpolicy.Type}
			p.match(typ, root, s.config)
		}
	}
}

// A pin compares one schema with Go types.
type pin struct {
	t    *testing.T
	root map[string]any
	v1   bool // entries of network-policy are text only
}

func (p pin) match(at string, node map[string]any, typ reflect.Type) {
	p.t.Helper()
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	node = p.resolve(node)
	switch typ {
	case reflect.TypeFor[argv.Command](), reflect.TypeFor[phase.Set]():
		p.kinds(at, node, "array", "string")
		return
	case reflect.TypeFor[credential.Structure]():
		p.kinds(at, node, "object")
		return
	case reflect.TypeFor[networkpolicy.Entry]():
		if p.v1 {
			p.kinds(at, node, "string")
			return
		}
		p.kinds(at, node, "object", "string")
		for _, n := range node["anyOf"].([]any) {
			if n := p.resolve(n.(map[string]any)); n["type"] == "object" {
				p.fields(at, n, typ)
			}
		}
		return
	}
	switch typ.Kind() {
	case reflect.Struct:
		p.kinds(at, node, "object")
		p.fields(at, node, typ)
	case reflect.Slice:
		p.kinds(at, node, "array")
		p.match(at+"[]", node["items"].(map[string]any), typ.Elem())
	case reflect.Map:
		p.kinds(at, node, "object")
		p.match(at+"{}", node["additionalProperties"].(map[string]any), typ.Elem())
	case reflect.String:
		p.kinds(at, node, "string")
	// A number or a boolean may be a reference while a descriptor is authored.
	case reflect.Bool:
		p.kinds(at, node, "boolean", "string")
	case reflect.Int:
		p.kinds(at, node, "integer", "string")
	case reflect.Float64:
		p.kinds(at, node, "number", "string")
	default:
		p.t.Errorf("%s: no rule for %v", at, typ)
	}
}

func (p pin) fields(at string, node map[string]any, typ reflect.Type) {
	p.t.Helper()
	if node["additionalProperties"] != false {
		p.t.Errorf("%s: unknown fields are not refused", at)
	}
	properties, _ := node["properties"].(map[string]any)
	var required []string
	for _, r := range asList(node["required"]) {
		required = append(required, r.(string))
	}
	known := map[string]bool{}
	for i := range typ.NumField() {
		name, options, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		if name == "" {
			p.t.Errorf("%s: field %s has no name", at, typ.Field(i).Name)
			continue
		}
		known[name] = true
		property, ok := properties[name].(map[string]any)
		if !ok {
			p.t.Errorf("%s.%s: in the type and not in the schema", at, name)
			continue
		}
		// A field that is always written is one that cannot be left out.
		if options != "omitzero" && !slices.Contains(required, name) {
			p.t.Errorf("%s.%s: always encoded, yet not required by the schema", at, name)
		}
		p.match(at+"."+name, property, typ.Field(i).Type)
	}
	for name := range properties {
		if !known[name] {
			p.t.Errorf("%s.%s: in the schema and not in the type", at, name)
		}
	}
	for _, name := range required {
		if !known[name] {
			p.t.Errorf("%s.%s: required and unknown", at, name)
		}
	}
}

// kinds fails unless node admits values of exactly the JSON kinds want.
func (p pin) kinds(at string, node map[string]any, want ...string) {
	p.t.Helper()
	got := map[string]bool{}
	p.admit(node, "", got)
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, want) {
		p.t.Errorf("%s: the schema admits %q, the type %q", at, names, want)
	}
}

func (p pin) admit(node map[string]any, inherited string, got map[string]bool) {
	node = p.resolve(node)
	kind, ok := node["type"].(string)
	if !ok {
		kind = inherited
	}
	if choices := asList(node["anyOf"]); choices != nil && (kind == "" || kind == "string") {
		for _, n := range choices {
			p.admit(n.(map[string]any), kind, got)
		}
		return
	}
	got[kind] = true
}

func (p pin) resolve(node map[string]any) map[string]any {
	ref, ok := node["$ref"].(string)
	if !ok {
		return node
	}
	defs, _ := p.root["$defs"].(map[string]any)
	to, ok := defs[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
	if !ok {
		p.t.Fatalf("%s leads nowhere", ref)
	}
	return to
}

func asList(v any) []any {
	l, _ := v.([]any)
	return l
}

func compile(t *testing.T, name string, schema []byte) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mem:///schema.json", doc); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	s, err := c.Compile("mem:///schema.json")
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return s
}

func value(t *testing.T, config string) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(config))
	if err != nil {
		t.Fatalf("%s: %v", config, err)
	}
	return v
}
