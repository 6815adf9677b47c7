package networkpolicy

import (
	_ "embed"
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
)

//go:embed schema.json
var schemaV1 []byte

//go:embed schema2.json
var schemaV2 []byte

// A policyV1 is the shape of version 1, whose entries are text only.
type policyV1 struct {
	Install rulesV1 `json:"install"`
	Runtime rulesV1 `json:"runtime"`
}

type rulesV1 struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

// read decodes either version into c.
func read(r capability.Request, f capability.Form, in *capability.Inspection, c *Config) bool {
	if r.Type != Type {
		_, ok := in.Read(r, f, c)
		return ok
	}
	v1 := new(policyV1)
	if _, ok := in.Read(r, f, v1); !ok {
		return false
	}
	c.Install = Rules{lift(v1.Install.Allow), lift(v1.Install.Deny)}
	c.Runtime = Rules{lift(v1.Runtime.Allow), lift(v1.Runtime.Deny)}
	return true
}

// lift returns what version 2 calls the hosts of version 1. All entries share
// the one array of hosts.
func lift(hosts []string) []Entry {
	if hosts == nil {
		return nil
	}
	entries := make([]Entry, len(hosts))
	for i := range hosts {
		entries[i].Hosts = hosts[i : i+1 : i+1]
	}
	return entries
}

// fields is an Entry without its methods, to decode the written-out form.
type fields Entry

var errEntry = errors.New("must be a host, or a map of hosts, methods and paths")

// UnmarshalJSONFrom reads a host or a map.
func (e *Entry) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	switch dec.PeekKind() {
	case '"':
		t, err := dec.ReadToken()
		if err != nil {
			return err
		}
		*e = Entry{Hosts: []string{t.String()}}
		return nil
	case '{':
		return json.UnmarshalDecode(dec, (*fields)(e))
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	return errEntry
}

// MarshalJSONTo writes a host without bounds as text, as its author did.
func (e Entry) MarshalJSONTo(enc *jsontext.Encoder) error {
	if e.bare() {
		return enc.WriteToken(jsontext.String(e.Hosts[0]))
	}
	return json.MarshalEncode(enc, fields(e))
}
