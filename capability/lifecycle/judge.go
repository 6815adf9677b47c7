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
	for i := range c.Files {
		c.judgeFile(i, f, in)
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

func (c *Config) judgeFile(i int, f capability.Form, in *capability.Inspection) {
	file := &c.Files[i]
	problem := func(field, message string) {
		in.Problem("config.files["+strconv.Itoa(i)+"]."+field, message)
	}
	if !f.Waits(file.Path) {
		if fault := guestpath.Absolute(file.Path); fault != "" {
			problem("path", fault)
		} else if j := c.firstAt(file.Dest()); j < i {
			problem("path", fmt.Sprintf("files[%d] is written to %s too", j, file.Dest()))
		}
	}
	if file.Mode != "" && !f.Waits(file.Mode) {
		if _, ok := filemode.Parse(file.Mode); !ok {
			problem("mode", filemode.Fault)
		}
	}
}

// firstAt returns the index of the first file that goes to dest.
func (c *Config) firstAt(dest string) int {
	for j := range c.Files {
		if c.Files[j].Dest() == dest {
			return j
		}
	}
	return len(c.Files)
}
