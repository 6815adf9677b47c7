package frontend

import (
	"maps"
	"path"
	"slices"
	"time"

	"github.com/moby/buildkit/client/llb"

	"github.com/kitbox-dev/kitbox/spec/content"
)

// stagedDir is where the Kit's own files are in its image.
func (k *kit) stagedDir() string { return path.Join(content.StageRoot, k.stem) }

// stage returns a file system of the Kit's staged sources. Its layer depends on
// nothing else, the clock included.
func (k *kit) stage(descriptor []byte) (llb.State, error) {
	yaml, err := k.stagedYAML(descriptor)
	if err != nil {
		return llb.State{}, err
	}
	return k.stageFiles(k.sources(yaml)), nil
}

// sources are the files to stage, by name. The descriptor is given as it is to be
// staged.
func (k *kit) sources(descriptor []byte) map[string][]byte {
	files := maps.Clone(k.content)
	if files == nil {
		files = map[string][]byte{}
	}
	files[content.StagedDescriptor] = descriptor
	if k.recipe != nil {
		files[content.StagedRecipe] = k.recipe.data
	}
	return files
}

// stageFiles is a file system of these sources.
func (k *kit) stageFiles(files map[string][]byte) llb.State {
	epoch := time.Unix(0, 0).UTC()
	name := llb.WithCustomName("[kit] write " + k.stagedDir())
	raw := llb.Scratch().File(llb.Mkdir(k.stagedDir(), 0o755, llb.WithParents(true), llb.WithCreatedTime(epoch)), name)
	for _, f := range slices.Sorted(maps.Keys(files)) {
		raw = raw.File(llb.Mkfile(path.Join(k.stagedDir(), f), 0o644, files[f], llb.WithCreatedTime(epoch)), name)
	}
	// Writing a file sets the time of every directory above it to now, stated
	// times or not; a copy sets them all.
	return llb.Scratch().File(llb.Copy(raw, "/", "/", &llb.CopyInfo{
		CreatedTime:         &epoch,
		CopyDirContentsOnly: true,
	}), name)
}
