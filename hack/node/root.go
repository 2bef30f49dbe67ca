package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// root describes a container's process and what it sees: the machine's programs and libraries, read-only, and its mounts.
type root struct {
	Directory, Hostname, Group     string
	Uid, Gid                       int
	Groups                         []int
	Command, Environment           []string
	WorkingDirectory               string
	IsReadOnly, HasNoNewPrivileges bool
	Mounts                         []mount
}

// mount is a file or a directory of the machine at a path of the container.
type mount struct {
	From, To   string
	IsReadOnly bool
}

// image is what each container has of this machine.
var image = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt"}

// isolated are the namespaces of a container.
func isolated() *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS,
	}
	if os.Getuid() != 0 {
		// Who starts the Node is root in there, and nobody else is.
		attributes.Cloneflags |= syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return attributes
}

// enter becomes the process that standard input describes.
func enter() error {
	runtime.LockOSThread()
	var r root
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		return err
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		return err
	}
	if err := syscall.Dup3(int(null.Fd()), 0, 0); err != nil {
		return err
	}
	if r.Group != "" {
		if err := os.WriteFile(r.Group, []byte("0"), 0); err != nil {
			return err
		}
	}
	if err := r.build(); err != nil {
		return fmt.Errorf("the container's root: %w", err)
	}
	if err := errors.Join(syscall.Sethostname([]byte(r.Hostname)), syscall.Chroot(r.Directory), os.Chdir("/")); err != nil {
		return err
	}
	if r.WorkingDirectory != "" {
		if err := os.Chdir(r.WorkingDirectory); err != nil {
			return err
		}
	}
	if mapped, _ := os.ReadFile("/proc/self/uid_map"); len(mapped) > 0 && strings.Fields(string(mapped))[2] != "1" {
		if err := errors.Join(syscall.Setgroups(r.Groups), syscall.Setresgid(r.Gid, r.Gid, r.Gid), syscall.Setresuid(r.Uid, r.Uid, r.Uid)); err != nil {
			return err
		}
	}
	const noNewPrivileges = 38
	if r.HasNoNewPrivileges {
		if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, noNewPrivileges, 1, 0, 0, 0, 0); errno != 0 {
			return errno
		}
	}
	// A change of the user takes it away.
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0, 0); errno != 0 {
		return errno
	}
	for _, variable := range r.Environment {
		if name, value, ok := strings.Cut(variable, "="); ok && name == "PATH" {
			_ = os.Setenv("PATH", value)
		}
	}
	program, err := exec.LookPath(r.Command[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", program, syscall.Exec(program, r.Command, r.Environment))
}

// build makes the root in a file system of its own, which nobody else sees.
func (r *root) build() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", r.Directory, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	// What is mounted later goes over what was before.
	slices.SortStableFunc(r.Mounts, func(a, b mount) int { return strings.Compare(path.Clean(a.To), path.Clean(b.To)) })
	for _, name := range image {
		if err := r.take("/" + name); err != nil {
			return err
		}
	}
	for _, directory := range []string{"/proc", "/sys", "/dev", "/dev/shm", "/run", "/var", "/home", "/root", "/mnt"} {
		if err := os.MkdirAll(r.Directory+directory, 0o755); err != nil {
			return err
		}
	}
	for _, directory := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		if err := errors.Join(os.MkdirAll(r.Directory+directory, 0o777), os.Chmod(r.Directory+directory, 0o777|os.ModeSticky)); err != nil {
			return err
		}
	}
	if err := syscall.Mount("proc", r.Directory+"/proc", "proc", 0, ""); err != nil {
		return err
	}
	for _, device := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if err := bind("/dev/"+device, r.Directory+"/dev/"+device, false); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(target, r.Directory+"/dev/"+name); err != nil {
			return err
		}
	}
	for _, one := range r.Mounts {
		if err := bind(one.From, filepath.Join(r.Directory, one.To), one.IsReadOnly); err != nil {
			return fmt.Errorf("%s at %s: %w", one.From, one.To, err)
		}
	}
	if r.IsReadOnly {
		return syscall.Mount("", r.Directory, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, "")
	}
	return nil
}

// take shows the machine's file or directory, and makes a new one of each directory in which something is mounted.
func (r *root) take(name string) error {
	info, err := os.Lstat(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	isWithin := func(one mount) bool { return strings.HasPrefix(path.Clean(one.To), name+"/") }
	switch {
	case info.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(name)
		if err != nil {
			return err
		}
		return os.Symlink(target, r.Directory+name)
	case info.IsDir() && slices.ContainsFunc(r.Mounts, isWithin):
		if err := os.Mkdir(r.Directory+name, 0o755); err != nil {
			return err
		}
		entries, err := os.ReadDir(name)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if err := r.take(name + "/" + entry.Name()); err != nil {
				return err
			}
		}
		return nil
	case info.IsDir(), info.Mode().IsRegular():
		return bind(name, r.Directory+name, true)
	}
	return nil
}

// bind mounts a file or a directory, and makes what it is mounted on.
func bind(from, to string, isReadOnly bool) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if _, err := os.Stat(to); err != nil {
		if info.IsDir() {
			err = os.MkdirAll(to, 0o755)
		} else if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
			err = os.WriteFile(to, nil, 0o644)
		}
		if err != nil {
			return err
		}
	}
	if err := syscall.Mount(from, to, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
		return err
	}
	if !isReadOnly {
		return nil
	}
	// Within a namespace of users what is mounted keeps its flags.
	var state syscall.Statfs_t
	if err := syscall.Statfs(to, &state); err != nil {
		return err
	}
	kept := uintptr(state.Flags) & (syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC)
	return syscall.Mount("", to, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY|kept, "")
}
