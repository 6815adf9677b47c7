package plan

// Command is the workload's command (§8): entrypoint and command of the image
// as they are without a terminal, the entrypoint and the stated interactive tail
// with one, and args behind either.
func (l Launch) Command(args []string, terminal bool) []string {
	argv := l.Argv
	if terminal && l.InteractiveStated {
		argv = append(append([]string(nil), l.Entrypoint...), l.Interactive...)
	}
	argv = append(append([]string(nil), argv...), args...)
	if l.Bash && len(argv) > 0 {
		// Not a login and not an interactive shell: BASH_ENV is what it
		// reads. The workload replaces it, so that it gets the signals.
		argv = append([]string{"/bin/bash", "-c", `exec "$@"`, "bash"}, argv...)
	}
	return argv
}
