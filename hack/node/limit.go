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
	var made limit
	parent := "/sys/fs/cgroup/memory"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		made.isUnified, parent = true, "/sys/fs/cgroup"
		_ = os.WriteFile(parent+"/cgroup.subtree_control", []byte("+memory"), 0)
	}
	made.directory = filepath.Join(parent, fmt.Sprintf("node-%d-%s-%s-%d", os.Getpid(), c.object.UID, c.spec.Name, c.restarts))
	file := "memory.limit_in_bytes"
	if made.isUnified {
		file = "memory.max"
	}
	err := os.Mkdir(made.directory, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(made.directory, file), []byte(strconv.FormatInt(most.Value(), 10)), 0)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "node: %s/%s has no limit of memory: %v\n", c.object.Name, c.spec.Name, err)
		made.remove()
		return nil
	}
	return &made
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
