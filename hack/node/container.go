package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// container is one process after the other of one container. What changes is behind the pod's mutex.
type container struct {
	*pod
	spec   core.Container
	isInit bool

	process  *os.Process
	state    core.ContainerState
	last     core.ContainerState
	restarts int32
	isReady  bool
}

func newContainer(p *pod, spec core.Container, isInit bool) *container {
	reason := "ContainerCreating"
	if len(p.object.Spec.InitContainers) > 0 {
		reason = "PodInitializing"
	}
	return &container{pod: p, spec: spec, isInit: isInit, state: waiting(reason, "")}
}

func waiting(reason, message string) core.ContainerState {
	return core.ContainerState{Waiting: &core.ContainerStateWaiting{Reason: reason, Message: message}}
}

func (c *container) isSidecar() bool {
	return c.isInit && c.spec.RestartPolicy != nil && *c.spec.RestartPolicy == core.ContainerRestartPolicyAlways
}

func (c *container) hasStarted() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.state.Running != nil
}

// status is what the API server is told; the mutex is held.
func (c *container) status() core.ContainerStatus {
	started := c.state.Running != nil
	done := c.isInit && !c.isSidecar() && c.state.Terminated != nil && c.state.Terminated.ExitCode == 0
	return core.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, State: c.state, LastTerminationState: c.last,
		Ready: c.isReady && started || done, Started: &started, RestartCount: c.restarts,
	}
}

func (c *container) is(state core.ContainerState) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.state, c.changed = state, true
}

// home is where its log and its termination message are.
func (c *container) home() string {
	return filepath.Join(c.pod.home(), c.spec.Name)
}

// log is the file of a run.
func (c *container) log(run int32) string {
	return filepath.Join(c.home(), fmt.Sprintf("%d.log", run))
}

// run starts the process, anew when it ends, as the policy says; true if it ended well.
func (c *container) run(ctx context.Context, volumes map[string]string, policy core.RestartPolicy) bool {
	program, known := c.programs[c.spec.Image]
	if !known {
		why := fmt.Sprintf("failed to pull %q: this machine has no such image", c.spec.Image)
		c.is(waiting("ErrImagePull", why))
		c.event(ctx, core.EventTypeWarning, "Failed", why)
		c.pause(ctx, 10*time.Second)
		c.is(waiting("ImagePullBackOff", fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %s", c.spec.Image, why)))
		for c.pause(ctx, time.Second) {
		}
		return false
	}
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		ended, err := c.once(ctx, program, volumes)
		switch {
		case err != nil:
			c.is(waiting("CreateContainerConfigError", err.Error()))
		case ctx.Err() != nil || c.isStopping() || policy == core.RestartPolicyNever ||
			policy == core.RestartPolicyOnFailure && ended.ExitCode == 0:
			c.is(core.ContainerState{Terminated: ended})
			return ended.ExitCode == 0
		default:
			c.mutex.Lock()
			c.last = core.ContainerState{Terminated: ended}
			c.state = waiting("CrashLoopBackOff", fmt.Sprintf("back-off restarting failed container %s", c.spec.Name))
			c.changed = true
			c.restarts++
			c.mutex.Unlock()
		}
		if !c.pause(ctx, pause) {
			return false
		}
	}
}

// once runs the process to its end.
func (c *container) once(ctx context.Context, program string, volumes map[string]string) (*core.ContainerStateTerminated, error) {
	uid, gid, groups := c.user()
	if security := c.spec.SecurityContext; uid == 0 && isNotRoot(c.object.Spec.SecurityContext, security) {
		return nil, fmt.Errorf("container has runAsNonRoot and image will run as root (pod: %q, container: %s)", c.object.Name, c.spec.Name)
	}
	environment, err := c.environment(ctx)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.home(), 0o755); err != nil {
		return nil, err
	}
	message := filepath.Join(c.home(), "termination-log")
	if err := os.WriteFile(message, nil, 0o666); err != nil {
		return nil, err
	}
	if err := errors.Join(os.Chmod(message, 0o666), os.MkdirAll(filepath.Join(c.home(), "root"), 0o755)); err != nil {
		return nil, err
	}
	entry := "/usr/local/bin/" + filepath.Base(program)
	description := root{
		Directory: filepath.Join(c.home(), "root"), Hostname: c.object.Name, Uid: uid, Gid: gid, Groups: groups,
		Command: []string{entry}, WorkingDirectory: c.spec.WorkingDir,
		Mounts: []mount{{From: program, To: entry, IsReadOnly: true}, {From: message, To: c.spec.TerminationMessagePath}},
	}
	if security := c.spec.SecurityContext; security != nil {
		description.IsReadOnly = security.ReadOnlyRootFilesystem != nil && *security.ReadOnlyRootFilesystem
		description.HasNoNewPrivileges = security.AllowPrivilegeEscalation != nil && !*security.AllowPrivilegeEscalation
	}
	for _, one := range c.spec.VolumeMounts {
		path := filepath.Join(volumes[one.Name], expand(one.SubPathExpr, environment), one.SubPath)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if _, err := os.Stat(path); err != nil {
			if err := os.Mkdir(path, 0o777); err != nil {
				return nil, err
			}
		}
		description.Mounts = append(description.Mounts, mount{From: path, To: one.MountPath, IsReadOnly: one.ReadOnly || !c.isWritable(one.Name)})
	}
	if len(c.spec.Command) > 0 {
		description.Command = nil
	}
	for _, word := range append(append([]string{}, c.spec.Command...), c.spec.Args...) {
		description.Command = append(description.Command, listens.ReplaceAllString(expand(word, environment), "${1}"+c.address+":${2}"))
	}
	all := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "HOSTNAME": c.object.Name}
	if server, err := url.Parse(c.config.Host); err == nil {
		all["KUBERNETES_SERVICE_HOST"], all["KUBERNETES_SERVICE_PORT"], _ = net.SplitHostPort(server.Host)
	}
	maps.Copy(all, environment)
	for name, value := range all {
		description.Environment = append(description.Environment, name+"="+value)
	}
	return c.start(ctx, description, message)
}

// start runs what is described.
func (c *container) start(ctx context.Context, description root, message string) (*core.ContainerStateTerminated, error) {
	runtime.LockOSThread() // a process dies with the thread that started it
	defer runtime.UnlockOSThread()
	limit := c.limit()
	defer limit.remove()
	description.Group = limit.processes()
	text, err := json.Marshal(description)
	if err != nil {
		return nil, err
	}
	here, err := os.Executable()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(c.log(c.restarts))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	command := exec.Command(here, inside)
	command.Dir, command.Stdin, command.Stdout, command.Stderr = "/", strings.NewReader(string(text)), write, write
	command.SysProcAttr = isolated()
	c.mutex.Lock()
	if c.stopping {
		c.mutex.Unlock()
		return nil, errors.Join(errors.New("it was to end before it began"), read.Close(), write.Close())
	}
	err = command.Start()
	started := meta.Now()
	if err == nil {
		c.process, c.state, c.changed = command.Process, core.ContainerState{Running: &core.ContainerStateRunning{StartedAt: started}}, true
	}
	c.mutex.Unlock()
	write.Close()
	if err != nil {
		read.Close()
		return nil, err
	}
	logged, ended := make(chan struct{}), make(chan struct{})
	go func() { defer close(logged); defer read.Close(); keep(read, log) }()
	go func() { _ = command.Wait(); close(ended) }()
	c.probe(ctx, started, ended)
	<-logged
	c.mutex.Lock()
	c.process, c.isReady = nil, false
	c.mutex.Unlock()

	state := &core.ContainerStateTerminated{Reason: "Completed", StartedAt: started, FinishedAt: meta.Now()}
	if status, ok := command.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		state.ExitCode = 128 + int32(status.Signal())
	} else {
		state.ExitCode = int32(command.ProcessState.ExitCode())
	}
	switch {
	case limit.killed():
		state.Reason = "OOMKilled"
	case state.ExitCode != 0:
		state.Reason = "Error"
	}
	said, _ := os.ReadFile(message)
	if len(said) == 0 && state.ExitCode != 0 && c.spec.TerminationMessagePolicy == core.TerminationMessageFallbackToLogsOnError {
		said = tail(c.log(c.restarts), 80, 2048)
	}
	state.Message = string(said[:min(len(said), 4096)])
	return state, nil
}

// keep writes lines as a container runtime does: time, stream, whether it is whole.
func keep(from io.Reader, log io.Writer) {
	lines := bufio.NewReaderSize(from, 16*1024)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			mark := "F"
			if line[len(line)-1] == '\n' {
				line = line[:len(line)-1]
			} else if err != nil && errors.Is(err, bufio.ErrBufferFull) {
				mark = "P"
			}
			fmt.Fprintf(log, "%s stdout %s %s\n", time.Now().UTC().Format(time.RFC3339Nano), mark, line)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// probe tells whether the process is ready, and ends it when it is not alive, until it has ended.
func (c *container) probe(ctx context.Context, started meta.Time, ended chan struct{}) {
	failures, misses := int32(0), int32(0)
	for {
		is := c.asks(c.spec.ReadinessProbe)
		// One answer that is late does not take away what is ready.
		if misses++; is {
			misses = 0
		} else if ready := c.spec.ReadinessProbe; misses < max(ready.FailureThreshold, 1) {
			is = c.isReady
		}
		c.mutex.Lock()
		c.changed = c.changed || is != c.isReady
		c.isReady = is
		c.mutex.Unlock()
		// A start takes its time.
		if live := c.spec.LivenessProbe; live != nil && time.Since(started.Time) > 10*time.Second {
			if failures++; c.asks(live) {
				failures = 0
			}
			if failures > max(live.FailureThreshold, 3)*max(live.PeriodSeconds, 1) {
				c.mutex.Lock()
				if c.process != nil {
					_ = c.process.Signal(syscall.SIGKILL)
				}
				c.mutex.Unlock()
			}
		}
		select {
		case <-ended:
			return
		case <-time.After(time.Second / 2):
		}
	}
}

// asks is true where there is no probe.
func (c *container) asks(probe *core.Probe) bool {
	if probe == nil || probe.HTTPGet == nil {
		return true
	}
	port := probe.HTTPGet.Port.IntValue()
	for _, one := range c.spec.Ports {
		if one.Name == probe.HTTPGet.Port.StrVal {
			port = int(one.ContainerPort)
		}
	}
	client := http.Client{Timeout: time.Duration(max(probe.TimeoutSeconds, 1)) * time.Second}
	answer, err := client.Get("http://" + c.address + ":" + strconv.Itoa(port) + probe.HTTPGet.Path)
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode < 400
}

// user is who the process runs as: who the image of the operator says unless the pod says another.
func (c *container) user() (uid, gid int, groups []int) {
	uid, gid = 65532, 65532
	if security := c.object.Spec.SecurityContext; security != nil {
		if security.RunAsUser != nil {
			uid = int(*security.RunAsUser)
		}
		if security.RunAsGroup != nil {
			gid = int(*security.RunAsGroup)
		}
		if security.FSGroup != nil {
			groups = append(groups, int(*security.FSGroup))
		}
		for _, group := range security.SupplementalGroups {
			groups = append(groups, int(group))
		}
	}
	if security := c.spec.SecurityContext; security != nil {
		if security.RunAsUser != nil {
			uid = int(*security.RunAsUser)
		}
		if security.RunAsGroup != nil {
			gid = int(*security.RunAsGroup)
		}
	}
	return uid, gid, groups
}

func isNotRoot(pod *core.PodSecurityContext, container *core.SecurityContext) bool {
	if container != nil && container.RunAsNonRoot != nil {
		return *container.RunAsNonRoot
	}
	return pod != nil && pod.RunAsNonRoot != nil && *pod.RunAsNonRoot
}

var listens = regexp.MustCompile(`^(--[a-z-]+-address=):(\d+)$`)

func (c *container) environment(ctx context.Context) (map[string]string, error) {
	environment := map[string]string{}
	for _, from := range c.spec.EnvFrom {
		if ref := from.SecretRef; ref != nil {
			data, err := c.secret(ctx, ref.Name, ref.Optional)
			if err != nil {
				return nil, err
			}
			for key, value := range data {
				environment[from.Prefix+key] = string(value)
			}
		}
		if ref := from.ConfigMapRef; ref != nil {
			data, err := c.configMap(ctx, ref.Name, ref.Optional)
			if err != nil {
				return nil, err
			}
			for key, value := range data {
				environment[from.Prefix+key] = string(value)
			}
		}
	}
	for _, one := range c.spec.Env {
		value := expand(one.Value, environment)
		if from := one.ValueFrom; from != nil {
			switch {
			case from.FieldRef != nil:
				value = c.field(from.FieldRef.FieldPath)
			case from.SecretKeyRef != nil:
				data, err := c.secret(ctx, from.SecretKeyRef.Name, from.SecretKeyRef.Optional)
				if err != nil {
					return nil, err
				}
				found, ok := data[from.SecretKeyRef.Key]
				if !ok {
					if optional := from.SecretKeyRef.Optional; optional == nil || !*optional {
						return nil, fmt.Errorf("couldn't find key %s in Secret %s/%s", from.SecretKeyRef.Key, c.object.Namespace, from.SecretKeyRef.Name)
					}
					continue
				}
				value = string(found)
			case from.ConfigMapKeyRef != nil:
				data, err := c.configMap(ctx, from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Optional)
				if err != nil {
					return nil, err
				}
				found, ok := data[from.ConfigMapKeyRef.Key]
				if !ok {
					if optional := from.ConfigMapKeyRef.Optional; optional == nil || !*optional {
						return nil, fmt.Errorf("couldn't find key %s in ConfigMap %s/%s", from.ConfigMapKeyRef.Key, c.object.Namespace, from.ConfigMapKeyRef.Name)
					}
					continue
				}
				value = string(found)
			}
		}
		environment[one.Name] = value
	}
	return environment, nil
}

var reference = regexp.MustCompile(`\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

// expand resolves $(NAME), as kubelet does; $$ is one $.
func expand(text string, environment map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if value, ok := environment[found[2:len(found)-1]]; ok {
			return value
		}
		return found
	})
}
