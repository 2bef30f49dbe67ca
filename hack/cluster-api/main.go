// Command cluster-api runs Cluster API's own managers on a control plane of hack/controlplane, for tests.
//
// It is used through the scripts next to it, up and down; see README.md. It applies the CustomResourceDefinitions and
// webhook configurations that the managers come with, starts the managers, prints a line when they are ready, and ends
// them all when it ends: on a signal, with the control plane, or when one of them ends. They end even after kill -9.
package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// startTimeout bounds the start, on a machine that has much else to do.
const startTimeout = 3 * time.Minute

// manager is one of the executables, with the files of its module, in the directory of this program.
type manager struct {
	name string
	// The ports of its webhooks and of its health.
	webhooks, health int
}

var managers = []manager{
	{"core", 9443, 9543},
	{"bootstrap", 9444, 9544},
	{"controlplane", 9445, 9545},
	{"infrastructure", 9446, 9546},
}

func main() {
	if len(os.Args) != 3 || os.Args[1] != "run" {
		fmt.Fprintf(os.Stderr, "usage: %s run DIR\n", os.Args[0])
		os.Exit(2)
	}
	// A manager ends with the thread that started it, which must not be one that comes and goes.
	runtime.LockOSThread()
	if err := run(os.Args[2]); err != nil {
		fmt.Fprintf(os.Stderr, "cluster-api: %v\n", err)
		os.Exit(1)
	}
}

func run(plane string) error {
	plane, err := filepath.Abs(plane)
	if err != nil {
		return err
	}
	dir := filepath.Join(plane, "cluster-api")
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer cancel()
	signal.Ignore(unix.SIGHUP)
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("managers run on the control plane of %s already: %w", plane, err)
	}
	pid := filepath.Join(dir, "pid")
	if err := os.WriteFile(pid, fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
		return err
	}
	defer os.Remove(pid)
	gone, err := watchPlane(plane)
	if err != nil {
		return err
	}

	home, err := os.Executable()
	if err != nil {
		return err
	}
	s := &session{plane: plane, dir: dir, home: filepath.Dir(home), ended: make(chan error, len(managers))}
	defer s.kill()
	starting, done := context.WithTimeout(ctx, startTimeout)
	defer done()
	go func() {
		<-gone
		cancel()
	}()
	if err := s.start(starting); err != nil {
		return err
	}
	fmt.Println("ready, on", s.host)
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.ended:
		return err
	}
}

// session is the managers of one control plane.
type session struct {
	// plane is the control plane's directory, dir ours in it, home that of the executables.
	plane, dir, home string
	// host is a loopback address of their own: it leaves them every port, however many sessions there are.
	host  string
	ca    []byte
	alive []*exec.Cmd
	ended chan error
}

func (s *session) start(ctx context.Context) error {
	if err := s.pickHost(); err != nil {
		return err
	}
	var err error
	if s.ca, err = writePKI(s.dir, net.ParseIP(s.host)); err != nil {
		return err
	}
	api, err := connect(filepath.Join(s.plane, "kubeconfig"))
	if err != nil {
		return err
	}
	for _, m := range managers {
		if err := s.define(ctx, api, m); err != nil {
			return err
		}
	}
	if err := api.established(ctx); err != nil {
		return err
	}
	for _, m := range managers {
		if err := s.launch(m); err != nil {
			return err
		}
	}
	for _, m := range managers {
		if err := s.ready(ctx, m); err != nil {
			return err
		}
	}
	for _, m := range managers {
		if err := s.admit(ctx, api, m); err != nil {
			return err
		}
	}
	return nil
}

// pickHost takes an address of 127.0.0.0/8 where nobody listens on the first of the ports.
func (s *session) pickHost() error {
	var err error
	for range 10 {
		part := func() int { return 1 + rand.IntN(254) }
		s.host = fmt.Sprintf("127.%d.%d.%d", part(), part(), part())
		var listener net.Listener
		if listener, err = net.Listen("tcp", s.address(managers[0].webhooks)); err == nil {
			return listener.Close()
		}
	}
	return fmt.Errorf("no loopback address is free: %w", err)
}

func (s *session) address(port int) string {
	return net.JoinHostPort(s.host, strconv.Itoa(port))
}

func (s *session) launch(m manager) error {
	path := filepath.Join(s.dir, m.name+".log")
	log, err := os.Create(path)
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.Command(filepath.Join(s.home, m.name, "manager"),
		"--webhook-port="+strconv.Itoa(m.webhooks),
		"--webhook-cert-dir="+s.dir,
		"--health-addr="+s.address(m.health),
		"--diagnostics-address=0",
		"--feature-gates=ClusterTopology=true,MachinePool=true,RuntimeSDK=true",
	)
	command.Dir = s.dir
	command.Env = []string{
		"KUBECONFIG=" + filepath.Join(s.plane, "kubeconfig"),
		"POD_IP=" + s.host,
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "TMPDIR=" + os.TempDir(),
	}
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := command.Start(); err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	s.alive = append(s.alive, command)
	go func() { s.ended <- fmt.Errorf("%s ended: %v; see %s", m.name, command.Wait(), path) }()
	return nil
}

// ready waits until a manager serves its webhooks.
func (s *session) ready(ctx context.Context, m manager) error {
	client := http.Client{Timeout: 5 * time.Second}
	return poll(ctx, m.name+" to be ready", func() error {
		select {
		case err := <-s.ended:
			return fatal{err}
		default:
		}
		answer, err := client.Get("http://" + s.address(m.health) + "/readyz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("readyz: %s", answer.Status)
		}
		return nil
	})
}

// kill ends the managers; what they know is in the API.
func (s *session) kill() {
	for _, command := range s.alive {
		_ = command.Process.Kill()
	}
}

// fatal is an error that waiting does not mend.
type fatal struct{ error }

// poll tries until there is no error or the context ends.
func poll(ctx context.Context, what string, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		if end, is := err.(fatal); is {
			return end.error
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for %s: %w", what, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// watchPlane closes the channel when the control plane of a directory has ended.
func watchPlane(plane string) (<-chan struct{}, error) {
	text, err := os.ReadFile(filepath.Join(plane, "pid"))
	if err != nil {
		return nil, fmt.Errorf("no control plane of hack/controlplane/up runs in %s: %w", plane, err)
	}
	pid := strings.TrimSpace(string(text))
	// Process ids are used again: one that is the control plane's has this directory in its command line.
	lives := func() bool {
		words, err := os.ReadFile("/proc/" + pid + "/cmdline")
		return err == nil && strings.Contains(string(words), "\x00"+plane+"\x00")
	}
	if !lives() {
		return nil, fmt.Errorf("the control plane of %s, process %s, has ended", plane, pid)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for lives() {
			time.Sleep(250 * time.Millisecond)
		}
	}()
	return gone, nil
}
