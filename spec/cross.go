package spec

import (
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/kitbox-dev/kitbox/capability"
)

// The types that rules between entries speak of.
const (
	typeSbx                 = capability.Namespace + "/sbx@1"
	typeAgentSkill          = capability.Namespace + "/agent-skill@1"
	typeAgentContext        = capability.Namespace + "/agent-context@1"
	typeLifecycle           = capability.Namespace + "/lifecycle@1"
	typeSessions            = capability.Namespace + "/agent-sessions@1"
	typeInteractiveSessions = capability.Namespace + "/agent-interactive-sessions@1"
	typeCredential          = capability.Namespace + "/credential@1"
	typeNetworkPolicy       = capability.Namespace + "/network-policy@1"
	typeNetworkPolicyV2     = capability.Namespace + "/network-policy@2"
)

// loose reads the fields of a config that a rule needs. The type's own package
// judges the config; here it is enough to know whether it can be read.
func loose(r *capability.Request, dst any) bool {
	return r.Config != nil && json.Unmarshal(r.Config, dst) == nil
}

// cross gathers, in one declaration block, what rules between entries of
// different types need.
type cross struct {
	v *validator

	interactive           *[]string // lifecycle's tail; an empty one counts
	sessions              *located
	interactiveSessions   *located
	policies, credentials []located
}

type located struct {
	at place
	r  *capability.Request
}

// A Finding is about one of several requests that were judged together. Path is
// relative to the request.
type Finding struct {
	Index     int
	Path      string
	Message   string
	Statement string
}

// Together judges the rules between entries of different types in a list of
// merged requests: whether two spellings of one command agree, and, if selected
// says that the list is final, whether credentials are injected only where the
// network policy lets traffic go (§7.1.1).
func Together(rs []capability.Request, selected bool) []Finding {
	c := gather(rs)
	c.sessionVerbs()
	if selected {
		c.injection()
	}
	return c.findings()
}

// Injections is the second half of [Together], for a final list that has not
// been merged yet.
func Injections(rs []capability.Request) []Finding {
	c := gather(rs)
	c.injection()
	return c.findings()
}

func gather(rs []capability.Request) *cross {
	c := &cross{v: &validator{d: &Document{}, form: capability.Effective}}
	for i := range rs {
		c.note(place{i, -1}, &rs[i])
	}
	return c
}

func (c *cross) findings() []Finding {
	v := c.v
	out := make([]Finding, len(v.diags))
	for i, dg := range v.diags {
		head, rest, _ := strings.Cut(dg.Path, ".")
		n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(head, "capabilities["), "]"))
		out[i] = Finding{n, rest, dg.Message, dg.Statement}
	}
	return out
}

func (c *cross) note(at place, r *capability.Request) {
	switch r.Type {
	case typeLifecycle:
		var l struct {
			Interactive *[]string `json:"interactive"`
		}
		if loose(r, &l) && l.Interactive != nil {
			c.interactive = l.Interactive
		}
	case typeSessions:
		c.sessions = &located{at, r}
	case typeInteractiveSessions:
		c.interactiveSessions = &located{at, r}
	case typeNetworkPolicy, typeNetworkPolicyV2:
		c.policies = append(c.policies, located{at, r})
	case typeCredential:
		c.credentials = append(c.credentials, located{at, r})
	}
}

func (b *block) finish(ready bool) {
	b.cross.sessionVerbs()
	if ready {
		b.cross.injection()
	}
}

// sessionVerbs holds the two spellings of one command against each other.
func (c *cross) sessionVerbs() {
	if c.interactiveSessions == nil {
		return
	}
	var is struct {
		NewSession *[]string      `json:"newSession"`
		List       jsontext.Value `json:"list"`
	}
	if !loose(c.interactiveSessions.r, &is) {
		return
	}
	path := c.interactiveSessions.at.path()
	if c.interactive != nil && is.NewSession != nil && !slices.Equal(*c.interactive, *is.NewSession) &&
		literal(*c.interactive) && literal(*is.NewSession) {
		c.v.fail(path+".config.newSession", "agent-interactive-sessions@1/new-session-matches-lifecycle-interactive",
			"differs from lifecycle's interactive; both say how a session begins")
	}
	if c.sessions == nil {
		return
	}
	var s struct {
		List jsontext.Value `json:"list"`
	}
	if !loose(c.sessions.r, &s) {
		return
	}
	a, okA := argv(s.List)
	if slices.Equal(a, []string{"sh", "-c", ""}) {
		a = nil
	}
	okA = okA && len(a) > 0 // in agent-sessions an empty command is none
	b, okB := argv(is.List)
	if okA && okB && !slices.Equal(a, b) && literal(a) && literal(b) {
		c.v.fail(path+".config.list", "agent-interactive-sessions@1/list-matches-agent-sessions",
			"differs from the list command of agent-sessions")
	}
}

func literal(words []string) bool {
	return !slices.ContainsFunc(words, func(s string) bool { return strings.Contains(s, opening) })
}

// argv reads a command: a list of words, or a string for the shell.
func argv(v jsontext.Value) ([]string, bool) {
	if len(v) == 0 {
		return nil, false
	}
	if v.Kind() == '"' {
		var s string
		if json.Unmarshal(v, &s) != nil {
			return nil, false
		}
		return []string{"sh", "-c", s}, true
	}
	var words []string
	if v.Kind() != '[' || json.Unmarshal(v, &words) != nil {
		return nil, false
	}
	return words, true
}

// injection demands that a credential is injected only where the policy lets
// traffic go, in every phase the credential lists.
func (c *cross) injection() {
	if len(c.credentials) == 0 {
		return
	}
	allowed := map[string]map[string]bool{} // by phase
	for _, p := range c.policies {
		collectAllowed(p.r, allowed)
	}
	for _, cr := range c.credentials {
		var cfg struct {
			Phase  jsontext.Value `json:"phase"`
			APIKey struct {
				Inject []struct {
					Domain string `json:"domain"`
				} `json:"inject"`
			} `json:"apiKey"`
		}
		if !loose(cr.r, &cfg) {
			continue
		}
		for i, in := range cfg.APIKey.Inject {
			for _, phase := range phases(cfg.Phase) {
				if in.Domain != "" && !covers(allowed[phase], in.Domain) {
					c.v.fail(index(cr.at.path()+".config.apiKey.inject", i)+".domain", "credential@1/inject-domain-in-allow",
						"%q is not among the hosts that the network policy allows in the %s phase", in.Domain, phase)
					break
				}
			}
		}
	}
}

func phases(v jsontext.Value) []string {
	var one string
	if v.Kind() == '"' && json.Unmarshal(v, &one) == nil {
		return []string{one}
	}
	var many []string
	if v.Kind() == '[' && json.Unmarshal(v, &many) == nil {
		return many
	}
	return nil
}

// covers reports whether hosts, without ports, hold domain: a bare wildcard
// covers everything, any other pattern only its own spelling.
func covers(hosts map[string]bool, domain string) bool {
	return hosts["*"] || hosts["**"] || hosts[withoutPort(domain)]
}

func collectAllowed(r *capability.Request, into map[string]map[string]bool) {
	type rules struct {
		Allow []jsontext.Value `json:"allow"`
	}
	var cfg map[string]jsontext.Value
	if !loose(r, &cfg) {
		return
	}
	for phase, raw := range cfg {
		var rs rules
		if json.Unmarshal(raw, &rs) != nil {
			continue
		}
		if into[phase] == nil {
			into[phase] = map[string]bool{}
		}
		for _, a := range rs.Allow {
			var entry struct {
				Hosts []string `json:"hosts"`
			}
			var host string
			if a.Kind() == '"' && json.Unmarshal(a, &host) == nil {
				entry.Hosts = []string{host}
			} else if a.Kind() != '{' || json.Unmarshal(a, &entry) != nil {
				continue
			}
			for _, h := range entry.Hosts {
				into[phase][withoutPort(h)] = true
			}
		}
	}
}

// withoutPort cuts a port off a host. An IPv6 address keeps its colons.
func withoutPort(h string) string {
	if rest, ok := strings.CutPrefix(h, "["); ok {
		addr, _, _ := strings.Cut(rest, "]")
		return addr
	}
	host, port, ok := strings.Cut(h, ":")
	if !ok || strings.Contains(port, ":") {
		return h
	}
	return host
}
