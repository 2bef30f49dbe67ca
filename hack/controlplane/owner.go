package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// owner is the process a control plane lives and dies with. Process ids are used
// again, so it also has the process's start time.
type owner struct{ pid, start string }

// parseOwner reads "PID:START", "PID" or "0", which means none and yields nil.
func parseOwner(spec string) (*owner, error) {
	pid, start, known := strings.Cut(spec, ":")
	if pid == "0" {
		return nil, nil
	}
	now, ok := startTime(pid)
	if !ok || known && now != start {
		return nil, fmt.Errorf("the owner, process %s, is gone", pid)
	}
	return &owner{pid, now}, nil
}

// gone returns a channel that closes when the owner has ended, which is never for nil.
// It polls: reading a line of /proc four times a second costs nothing, and works where
// pidfds do not.
func (o *owner) gone() <-chan struct{} {
	gone := make(chan struct{})
	if o != nil {
		go func() {
			defer close(gone)
			for {
				if start, ok := startTime(o.pid); !ok || start != o.start {
					return
				}
				time.Sleep(250 * time.Millisecond)
			}
		}()
	}
	return gone
}

// startTime tells when a process started, in the kernel's ticks, and whether it lives;
// one that has ended but was not waited for does not.
func startTime(pid string) (string, bool) {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return "", false
	}
	// PID (NAME) STATE ...: the name may have spaces and parentheses of its own.
	line := string(stat)
	fields := strings.Fields(line[strings.LastIndex(line, ")")+1:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", false
	}
	return fields[19], true // field 22, counted from the process id
}
