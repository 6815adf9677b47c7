package lifecycle

import (
	"fmt"
	"strconv"

	"github.com/kitbox-dev/kitbox/capability"
	"github.com/kitbox-dev/kitbox/capability/argv"
	"github.com/kitbox-dev/kitbox/capability/envname"
	"github.com/kitbox-dev/kitbox/capability/filemode"
	"github.com/kitbox-dev/kitbox/capability/guestpath"
)

func (c *Config) judge(f capability.Form, _ capability.Open, in *capability.Inspection) {
	if len(c.Install) == 0 && len(c.Startup) == 0 && len(c.Files) == 0 && len(c.Interactive) == 0 {
		in.Problem("config", "declares no hook, no file and no interactive argument: remove the entry")
		return
	}
	for i := range c.Install {
		judgeHook("config.install[", i, &c.Install[i].Command, c.Install[i].User, c.Install[i].Env, f, in)
	}
	for i := range c.Startup {
		judgeHook("config.startup[", i, &c.Startup[i].Command, c.Startup[i].User, c.Startup[i].Env, f, in)
	}
	var taken map[string]int // by cleaned path
	if len(c.Files) > 1 {
		taken = make(map[string]int, len(c.Files))
	}
	for i := range c.Files {
		c.Files[i].judge(i, taken, f, in)
	}
	if fault := c.Interactive.Fault(); fault != "" {
		in.Problem("config.interactive", fault)
	}
}

func judgeHook(list string, i int, command *argv.Command, user string, env []string, f capability.Form, in *capability.Inspection) {
	problem := func(field, message string) {
		in.Problem(list+strconv.Itoa(i)+"]."+field, message)
	}
	if fault := command.Fault(); fault != "" {
		problem("command", fault)
	}
	for _, c := range []byte(user) {
		if c == 0 {
			problem("user", "a user cannot hold a NUL byte")
			break
		}
	}
	for _, name := range env {
		if !envname.Valid(name) && !f.Waits(name) {
			problem("env", fmt.Sprintf("%q is not the name of a variable: list names, not values", name))
		}
	}
}

func (file *File) judge(i int, taken map[string]int, f capability.Form, in *capability.Inspection) {
	problem := func(field, message string) {
		in.Problem("config.files["+strconv.Itoa(i)+"]."+field, message)
	}
	if !f.Waits(file.Path) {
		if fault := guestpath.Absolute(file.Path); fault != "" {
			problem("path", fault)
		} else if first, again := taken[file.Dest()]; again {
			problem("path", fmt.Sprintf("files[%d] is written to %s too", first, file.Dest()))
		} else if taken != nil {
			taken[file.Dest()] = i
		}
	}
	if file.Mode != "" && !f.Waits(file.Mode) {
		if _, ok := filemode.Parse(file.Mode); !ok {
			problem("mode", filemode.Fault)
		}
	}
}
