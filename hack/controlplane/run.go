package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// shutdownTimeout bounds an orderly end; after it the process just exits, which loses
// nothing that anybody needs.
const shutdownTimeout = 15 * time.Second

// run is the control plane. It ends on a signal, when its owner does, when the "up"
// that started it is gone before the control plane is ready, or when a component fails.
func run(ownerSpec, dir string) error {
	p := paths(dir)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	signal.Ignore(unix.SIGHUP)
	unix.CloseOnExec(lockFD) // open, and so locked, for as long as this process lives
	unix.CloseOnExec(socketFD)
	socket := os.NewFile(socketFD, "socket")
	if err := os.Chdir(dir); err != nil {
		return err
	}
	if err := writeFile(p.pid(), []byte(strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return err
	}
	defer os.Remove(p.pid())
	owner, err := parseOwner(ownerSpec)
	if err != nil {
		return err
	}

	stop := make(chan error, 1) // why to end; only the first reason counts
	end := func(reason error) {
		select {
		case stop <- reason:
		default:
		}
	}
	go func() {
		s := <-signals
		logf("signal: %v", s)
		end(nil)
	}()
	go func() {
		<-owner.gone()
		logf("the owner is gone")
		end(nil)
	}()
	go func() {
		if lines := bufio.NewScanner(socket); !lines.Scan() || lines.Text() != messageKeep {
			logf("whoever started this is gone")
			end(nil)
		}
		socket.Close()
	}()

	plane := newPlane(p, end)
	started := make(chan struct{})
	go func() {
		defer close(started)
		err := plane.start(func(what string) {
			logf("%s", what)
			fmt.Fprintln(socket, what)
		})
		if err != nil {
			end(err)
		}
	}()
	reason := <-stop
	if reason != nil {
		logf("failed: %v", reason)
	}

	time.AfterFunc(shutdownTimeout, func() {
		logf("still not ended after %v, giving up", shutdownTimeout)
		os.Remove(p.pid())
		os.Exit(1)
	})
	plane.clients.cancel() // ends a start that is still under way
	<-started
	plane.stop()
	logf("ended")
	return reason
}

func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "controlplane: %s "+format+"\n", append([]any{time.Now().Format("15:04:05.000")}, args...)...)
}

// plane is the components of a control plane. They start and end in order: the
// controllers and the scheduler need the API server, and that needs etcd up to its
// last moment; without it, it hangs.
type plane struct {
	paths
	clients *layer // of the API server
	api     *layer
	etcd    *embed.Etcd
}

func newPlane(p paths, fail func(error)) *plane {
	return &plane{paths: p, clients: newLayer(fail), api: newLayer(fail)}
}

// start starts all components and returns when they are ready.
func (p *plane) start(report func(string)) error {
	// The listener is open from here on, so that the port stays ours.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	admin, err := writePKI(p.paths, "https://"+listener.Addr().String())
	if err != nil {
		return err
	}
	if p.etcd, err = startEtcd(p.paths); err != nil {
		return err
	}
	report("etcd is ready")

	serve, err := newAPIServer(p.api.ctx, p.paths, listener)
	if err != nil {
		return err
	}
	p.api.run("kube-apiserver", serve)
	config, err := clientcmd.RESTConfigFromKubeConfig(admin)
	if err != nil {
		return err
	}
	config.UserAgent = "controlplane-readiness"
	config.QPS = -1
	// Connections wait in the listener's queue until the server takes them.
	config.Timeout = 10 * time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	await := func(path string) error {
		for p.clients.ctx.Err() == nil {
			if client.RESTClient().Get().AbsPath(path).Do(p.clients.ctx).Error() == nil {
				return nil
			}
			time.Sleep(50 * time.Millisecond)
		}
		return p.clients.ctx.Err()
	}
	if err := await("/readyz"); err != nil {
		return err
	}
	report("kube-apiserver is ready")

	for name, component := range map[string]func(context.Context, paths) error{
		"kube-controller-manager": runControllerManager,
		"garbage collector":       runGarbageCollector,
		"kube-scheduler":          runScheduler,
	} {
		p.clients.run(name, func(ctx context.Context) error { return component(ctx, p.paths) })
	}
	// Without its service account no Pod can be made in a namespace; once there is one
	// the controllers are at work.
	if err := await("/api/v1/namespaces/default/serviceaccounts/default"); err != nil {
		return err
	}
	if err := writeFile(p.kubeconfig(), admin); err != nil {
		return err
	}
	report(messageReady)
	return nil
}

// stop ends all components, from the top.
func (p *plane) stop() {
	p.clients.stop()
	p.api.stop()
	if p.etcd != nil {
		p.etcd.Close()
	}
}

// layer is components that end together.
type layer struct {
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	fail    func(error) // called when a component ends without being told to
}

func newLayer(fail func(error)) *layer {
	ctx, cancel := context.WithCancel(context.Background())
	return &layer{ctx: ctx, cancel: cancel, fail: fail}
}

func (l *layer) run(name string, component func(context.Context) error) {
	l.running.Go(func() {
		if err := component(l.ctx); l.ctx.Err() == nil {
			l.fail(fmt.Errorf("%s ended: %v", name, err))
		}
	})
}

func (l *layer) stop() {
	l.cancel()
	l.running.Wait()
}
