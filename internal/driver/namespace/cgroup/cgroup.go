package cgroup

type Limits struct{ CPUMillis, MemoryBytes, Pids int64 }
type Group struct{}

func (Group) Paths() []string                                              { return nil }
func Make(parent, name string, l Limits, pid int) (Group, []string, error) { return Group{}, nil, nil }
func Remove(parent string, paths []string) error                           { return nil }
