package tck

// Version and Revision say which suite gave a verdict. They are set when a
// program is linked; revision may be empty.
var (
	Version  = "dev"
	Revision string
)

// Stamp returns both for people, such as "3.0.0 (2f9a1c4e)".
func Stamp() string {
	if Revision == "" {
		return Version
	}
	return Version + " (" + Revision[:min(len(Revision), 8)] + ")"
}
