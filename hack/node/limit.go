package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// limit is a control group in which a container's processes share the memory that its spec gives; none where the spec gives
// no limit or this machine lets us have no group.
type limit struct {
	directory string
	isUnified bool
}

// limit is the one for the next process.
func (c *container) limit() *limit {
	most, ok := c.spec.Resources.Limits["memory"]
	if !ok {
		return nil
	}
	made, err := newLimit(fmt.Sprintf("%s-%s-%d", c.object.UID, c.spec.Name, c.restarts), most.Value())
	if err != nil {
		fmt.Fprintf(os.Stderr, "node: %s/%s has no limit of memory: %v\n", c.object.Name, c.spec.Name, err)
	}
	return made
}

// newLimit makes a group of so many bytes.
func newLimit(name string, bytes int64) (*limit, error) {
	made, parent, files := limit{}, "/sys/fs/cgroup/memory", [2]string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes"}
	swap := strconv.FormatInt(bytes, 10) // with what is swapped
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		made.isUnified, parent, files = true, "/sys/fs/cgroup", [2]string{"memory.max", "memory.swap.max"}
		swap = "0"
		_ = os.WriteFile(parent+"/cgroup.subtree_control", []byte("+memory"), 0)
	}
	made.directory = filepath.Join(parent, fmt.Sprintf("node-%d-%s", os.Getpid(), name))
	if err := os.Mkdir(made.directory, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(made.directory, files[0]), []byte(strconv.FormatInt(bytes, 10)), 0); err != nil {
		made.remove()
		return nil, err
	}
	_ = os.WriteFile(filepath.Join(made.directory, files[1]), []byte(swap), 0) // there may be no swap
	return &made, nil
}

// processes is the file in which a process writes itself.
func (l *limit) processes() string {
	if l == nil {
		return ""
	}
	return filepath.Join(l.directory, "cgroup.procs")
}

// killed is whether a process was ended for want of memory.
func (l *limit) killed() bool {
	if l == nil {
		return false
	}
	file := "memory.oom_control"
	if l.isUnified {
		file = "memory.events"
	}
	text, _ := os.ReadFile(filepath.Join(l.directory, file))
	for line := range strings.Lines(string(text)) {
		if count, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			return count != "0"
		}
	}
	return false
}

func (l *limit) remove() {
	if l != nil {
		_ = os.Remove(l.directory) // it holds no process any more
	}
}
