package engine

import (
	"os"

	"github.com/go-json-experiment/json"
)

// marshalDocument is the form of documents that nobody has to read after a power
// cut, and that package state reads back.
func marshalDocument(v any) ([]byte, error) { return json.Marshal(v, json.Deterministic(true)) }

func writeFile(name string, b []byte) error { return os.WriteFile(name, append(b, '\n'), 0o600) }
