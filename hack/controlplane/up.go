package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Messages on the socket between "up" and the server it starts. The server reports
// its progress as lines, the last of which is messageReady. As long as it has not
// heard messageKeep it ends when the socket closes, so that a killed "up" leaves
// nothing behind.
const (
	messageReady = "ready"
	messageKeep  = "keep"
)

// File descriptors the server inherits, after the three standard ones.
const (
	lockFD   = 3
	socketFD = 4
)

// up starts a control plane in dir and returns once it is ready. On failure it shows
// the end of the log and leaves nothing running.
func up(dir, ownerSpec string, timeout time.Duration) error {
	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "controlplane: "+format+"\n", args...)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)

	// The server outlives the caller's pipes and locks, so it must not inherit them.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)

	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	p := paths(dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The server holds the lock as long as it lives, since it inherits the open file.
	lock, err := os.OpenFile(p.lock(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == unix.EWOULDBLOCK {
		return fmt.Errorf("a control plane runs in %s already", dir)
	} else if err != nil {
		return fmt.Errorf("lock %s: %w", p.lock(), err)
	}
	if err := p.clear(); err != nil {
		return err
	}
	log, err := os.OpenFile(p.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	socket, theirs := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")
	defer socket.Close()

	executable, err := os.Executable()
	if err != nil {
		return err
	}
	server := exec.Command(executable)
	server.Args = []string{"clusterstack-controlplane", "run", ownerSpec, dir}
	server.Dir = dir
	server.Env = serverEnvironment()
	server.Stdout, server.Stderr = log, log
	server.ExtraFiles = []*os.File{lockFD - 3: lock, socketFD - 3: theirs}
	server.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := server.Start(); err != nil {
		return err
	}
	theirs.Close()
	say("starting in %s, pid %d", dir, server.Process.Pid)
	exited := make(chan error, 1)
	go func() { exited <- server.Wait() }()

	reports := make(chan string)
	go func() {
		defer close(reports)
		for lines := bufio.NewScanner(socket); lines.Scan(); {
			reports <- lines.Text()
		}
	}()
	deadline, showLog := time.After(timeout), true
	for err == nil {
		select {
		case report, ok := <-reports:
			switch {
			case !ok:
				err = errors.New("the control plane ended before it was ready")
			case report == messageReady:
				if _, err = fmt.Fprintln(socket, messageKeep); err == nil {
					say("ready after %.1f s; KUBECONFIG=%s", time.Since(began).Seconds(), p.kubeconfig())
					return nil
				}
			default:
				say("%s after %.1f s", report, time.Since(began).Seconds())
			}
		case s := <-signals:
			err = fmt.Errorf("stopped by signal: %v", s)
			showLog = false
		case <-deadline:
			err = fmt.Errorf("not ready after %v", timeout)
		}
	}

	end := tail(p.log(), 40) // before it is told to end, which it would talk about at length
	_ = server.Process.Signal(unix.SIGTERM)
	select {
	case <-exited:
	case <-time.After(10 * time.Second):
		_ = server.Process.Kill()
		<-exited
	}
	if showLog {
		say("the end of %s:", p.log())
		os.Stderr.Write(end)
	}
	return err
}

// serverEnvironment is what the server sees of the caller's environment: enough for
// the Go runtime, and nothing, such as a proxy or KUBECONFIG, that changes how it works.
func serverEnvironment() []string {
	var kept []string
	for _, variable := range os.Environ() {
		switch name, _, _ := strings.Cut(variable, "="); name {
		case "PATH", "HOME", "TMPDIR", "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK":
			kept = append(kept, variable)
		}
	}
	return kept
}

// tail returns the last lines of a file, each cut to a readable length.
func tail(path string, count int) []byte {
	content, _ := os.ReadFile(path)
	lines := bytes.SplitAfter(content, []byte("\n"))
	var end []byte
	for _, line := range lines[max(0, len(lines)-count-1):] {
		if len(line) > 500 {
			line = append(line[:500:500], "...\n"...)
		}
		end = append(end, line...)
	}
	return end
}
