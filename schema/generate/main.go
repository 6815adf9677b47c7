// Command generate writes the schemas into the working directory. Run it with
// go generate in the schema directory.
package main

import (
	"log"
	"os"
	"path/filepath"

	"github.com/kitbox-dev/kitbox/schema/compose"
)

func main() {
	files, err := compose.Files()
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range files {
		path := filepath.FromSlash(f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile(path, f.Data, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
