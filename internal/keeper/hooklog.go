package keeper

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kitbox-dev/kitbox/internal/plan"
	"github.com/kitbox-dev/kitbox/internal/store/durable"
	"github.com/kitbox-dev/kitbox/sandbox"
)

// HookLogName is the file of hook runs in a sandbox's state directory, one
// [sandbox.HookRun] a line.
const HookLogName = "hooks.jsonl"

// maxHookLog is how long that file may be when a boot begins, in bytes. A longer one is
// cut down to half of it.
const maxHookLog = 1 << 20

// HookRuns reads the log in dir, oldest first; none is not an error. A line that was cut
// short by a kill is left out.
func HookRuns(dir string) (runs []sandbox.HookRun, err error) {
	err = hookLines(dir, func(_ []byte, r sandbox.HookRun) { runs = append(runs, r) })
	return runs, err
}

// hookLines calls f with each whole line of the log in dir and what it says.
func hookLines(dir string, f func(line []byte, r sandbox.HookRun)) error {
	log, err := os.Open(filepath.Join(dir, HookLogName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer log.Close()
	for in := bufio.NewReaderSize(log, 64<<10); ; {
		line, err := in.ReadBytes('\n')
		var r sandbox.HookRun
		if json.Unmarshal(line, &r) == nil && r.Phase != "" {
			f(append(bytes.TrimSuffix(line, []byte{'\n'}), '\n'), r)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// appendHookRun adds run to the log in dir.
func appendHookRun(dir string, run sandbox.HookRun) error {
	b, err := json.Marshal(run)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, HookLogName), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	// A newline in front as well: what a kill cut short must not spoil this one.
	_, err = f.Write(append(append([]byte{'\n'}, b...), '\n'))
	return err
}

// trimHookRuns bounds the log in dir: of a long one the newest runs are kept, and those
// of install hooks, which ran once. A kill leaves the old log or the new. Nobody else
// may write it meanwhile.
func trimHookRuns(dir string) error {
	name := filepath.Join(dir, HookLogName)
	st, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.Size() <= maxHookLog {
		return nil
	}
	if err != nil {
		return err
	}
	var once, later [][]byte
	size := 0
	if err := hookLines(dir, func(line []byte, r sandbox.HookRun) {
		if r.Phase == string(plan.Install) {
			once = append(once, line)
			return
		}
		later = append(later, line)
		for size += len(line); size > maxHookLog/2; later = later[1:] {
			size -= len(later[0])
		}
	}); err != nil {
		return err
	}
	return errors.Join(durable.ReplaceAlone(name, bytes.Join(append(once, later...), nil), 0o600), durable.SyncDir(dir))
}
