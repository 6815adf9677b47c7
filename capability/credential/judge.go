package credential

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/envname"
	"github.com/kitbox-dev/kitbox/capability/hostpattern"
	"github.com/kitbox-dev/kitbox/capability/phase"
)

func (c *Config) judge(f capability.Form, _ capability.Open, in *capability.Inspection) {
	known := f.Waits(c.Service) || service(c.Service)
	if !known {
		in.Problem("config.service", fmt.Sprintf("%q is not a service: use lower case letters, digits and inner hyphens", c.Service))
	}
	if fault := c.Phase.Fault(f); fault != "" {
		in.Problem("config.phase", fault)
		known = false
	}
	if c.APIKey == nil && c.OAuth == nil {
		in.Breach("config", "credential@1/one-of-apikey-oauth", "presents nothing: state apiKey, oauth, or both")
	}
	if c.APIKey != nil {
		c.APIKey.judge(f, in)
	}
	if c.OAuth != nil {
		c.OAuth.judge(f, in)
	}
	for _, p := range c.Phase {
		if known {
			in.Claim(capability.Claim{Space: "credential", Key: c.Service + " " + string(p), At: "config.service", What: "credential"})
		}
		if p != phase.Runtime {
			in.Line(capability.ListCredentialsInstall, c.Service)
		}
		// What is not a phase, because it is still open, may turn out to be either.
		if p != phase.Install {
			in.Line(capability.ListCredentialsRuntime, c.Service)
		}
	}
}

func (k *APIKey) judge(f capability.Form, in *capability.Inspection) {
	if k.Name == "" && len(k.Inject) == 0 {
		in.Breach("config.apiKey", "credential@1/name-or-inject", "is presented nowhere: state name, inject, or both")
	}
	if k.Name != "" && !f.Waits(k.Name) && !envname.Valid(k.Name) {
		in.Problem("config.apiKey.name", fmt.Sprintf("%q is not the name of a variable", k.Name))
	}
	for i := range k.Inject {
		k.Inject[i].judge(func(field string) string { return "config.apiKey.inject[" + strconv.Itoa(i) + "]." + field }, f, in)
	}
}

func (r *Inject) judge(at func(field string) string, f capability.Form, in *capability.Inspection) {
	if !f.Waits(r.Domain) {
		if r.Domain == "" {
			in.Problem(at("domain"), "a domain is required")
		} else if fault := hostpattern.Fault(r.Domain); fault != "" {
			in.Problem(at("domain"), fmt.Sprintf("%q %s", r.Domain, fault))
		}
	}
	if r.Format != "" && !f.Waits(r.Format) && !strings.Contains(r.Format, "%s") {
		in.Warn(at("format"), fmt.Sprintf("%q has no %%s, so the secret is not in it", r.Format))
	}
}

func (o *OAuth) judge(f capability.Form, in *capability.Inspection) {
	if e := o.TokenEndpoint; e != nil {
		if !f.Waits(e.Host) {
			if e.Host == "" {
				in.Problem("config.oauth.tokenEndpoint.host", "a host is required")
			} else if fault := hostpattern.Fault(e.Host); fault != "" {
				in.Problem("config.oauth.tokenEndpoint.host", fmt.Sprintf("%q %s", e.Host, fault))
			}
		}
		if e.Path != "" && !f.Waits(e.Path) && e.Path[0] != '/' {
			in.Problem("config.oauth.tokenEndpoint.path", "must begin with /")
		}
	}
	for _, h := range o.ResourceHosts {
		if fault := hostpattern.Fault(h); fault != "" && !f.Waits(h) {
			in.Problem("config.oauth.resourceHosts", fmt.Sprintf("%q %s", h, fault))
		}
	}
	if o.CredentialFile != nil {
		o.CredentialFile.judge(f, in)
	}
}

func (c *CredentialFile) judge(f capability.Form, in *capability.Inspection) {
	const at = "config.oauth.credentialFile"
	if !f.Waits(c.Path) && (!strings.HasPrefix(c.Path, "/") && !strings.HasPrefix(c.Path, "~/") || strings.IndexByte(c.Path, 0) >= 0) {
		in.Problem(at+".path", "a path is required: absolute, or below ~/")
	}
	if c.Format != nil && *c.Format != JSON && *c.Format != TOML && !f.Waits(*c.Format) {
		in.Problem(at+".format", fmt.Sprintf("%q is not an encoding: write json or toml", *c.Format))
	}
	if c.Structure == nil {
		return
	}
	if jsontext.Value(c.Structure).Kind() != '{' {
		in.Problem(at+".structure", "must be a map")
		return
	}
	first := len(in.Problems)
	capability.Scalars(jsontext.Value(c.Structure), func(t jsontext.Token, p *capability.Place) bool {
		switch t.Kind() {
		case 'n':
			if c.Encoding() == TOML {
				in.Problem(at+".structure"+p.String(), "null cannot be written in TOML")
			}
		case '"':
			if unknown := unknownPlaceholder(t.String()); unknown != "" {
				in.Problem(at+".structure"+p.String(), fmt.Sprintf("%s is not a placeholder: there are {{.AccessToken}}, {{.RefreshToken}}, {{.ExpiresAt}}, {{.Scopes}} and {{.PrimaryApiKey}}", unknown))
			}
		}
		return len(in.Problems) < first+100 // more help nobody
	})
}

// unknownPlaceholder returns the first {{…}} in s that is not replaced when the
// file is rendered. A reference of the form ${{…}} is none of them.
func unknownPlaceholder(s string) string {
	for {
		i := strings.Index(s, "{{")
		if i < 0 {
			return ""
		}
		end := strings.Index(s[i:], "}}")
		if end < 0 {
			return ""
		}
		end += i + len("}}")
		if i == 0 || s[i-1] != '$' {
			switch s[i:end] {
			case "{{.AccessToken}}", "{{.RefreshToken}}", "{{.ExpiresAt}}", "{{.Scopes}}", "{{.PrimaryApiKey}}":
			default:
				return s[i:end]
			}
		}
		s = s[end:]
	}
}

// service reports whether s is words of lower case letters and digits, joined
// by hyphens.
func service(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case c == '-' && i > 0 && i < len(s)-1 && s[i-1] != '-':
		default:
			return false
		}
	}
	return s != ""
}
