package archtest

// Rows is the law, from the ground up.
var Rows = []Row{
	{Pkg: "kiterr", Why: "families and exit statuses stand on nothing"},
	{Pkg: "capability", Why: "the vocabulary knows no type and does no I/O"},
	{Pkg: "internal/plan", Why: "a plan is data; nothing in it acts"},
	{Pkg: "internal/driver", Why: "a driver has never heard of Kits", Only: []string{"kiterr", "internal/plan"}},
	{Pkg: "internal/archtest", Why: "the law looks at the others from outside", Only: []string{}},
}

// HeavyModules keeps large third-party modules behind their doors.
var HeavyModules = []Heavy{
	{Module: "github.com/moby/buildkit", Only: []string{"internal/frontend", "internal/builder", "internal/builder/*"}, Why: "the command must stay lean: BuildKit lives in kit-builder"},
}
