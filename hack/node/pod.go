package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	api "k8s.io/client-go/tools/clientcmd/api"
)

// pod is a Pod with one container, which is a process of this machine. What a container has and a process has not is
// stood in for: an address of its own (addresses like :8080 in the arguments become 127.x.y.z:8080), mounts (their paths
// become directories) and the token of its ServiceAccount (a kubeconfig). User, group, environment, probes, restarts and
// termination are as kubelet has them.
type pod struct {
	*node
	object  *core.Pod
	address string

	mutex    sync.Mutex
	process  *os.Process
	since    meta.Time
	restarts int32
	stopping bool
	done     chan struct{}
	ready    bool
}

func newPod(n *node, object *core.Pod, address string) *pod {
	return &pod{node: n, object: object, address: address, done: make(chan struct{})}
}

func (p *pod) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop asks the process to end, once, and ends it after the grace period.
func (p *pod) stop(grace time.Duration) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.stopping {
		return
	}
	p.stopping = true
	p.signal(syscall.SIGTERM)
	time.AfterFunc(grace, func() {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		p.signal(syscall.SIGKILL)
	})
}

// signal is for the process group; the mutex is held.
func (p *pod) signal(signal syscall.Signal) {
	if p.process != nil {
		_ = syscall.Kill(-p.process.Pid, signal)
	}
}

// run starts the process, anew when it ends, until the pod has to go.
func (p *pod) run(ctx context.Context) {
	defer close(p.done)
	runtime.LockOSThread() // a process dies with the thread that started it
	container := p.object.Spec.Containers[0]
	program, known := p.programs[container.Image]
	if len(p.object.Spec.Containers) != 1 || !known {
		p.report(ctx, waiting("ErrImagePull", fmt.Sprintf("failed to pull %q: this machine has no such image", container.Image)), core.PodPending)
		return
	}
	for pause := time.Second; ctx.Err() == nil; pause = min(2*pause, time.Minute) {
		state, err := p.once(ctx, container, program)
		p.mutex.Lock()
		stopping := p.stopping
		p.ready, p.process = false, nil
		p.restarts++
		p.mutex.Unlock()
		switch {
		case err != nil:
			p.report(ctx, waiting("CreateContainerConfigError", err.Error()), core.PodPending)
		case stopping:
			return
		case p.object.Spec.RestartPolicy == core.RestartPolicyNever && state.ExitCode == 0:
			p.report(ctx, core.ContainerState{Terminated: state}, core.PodSucceeded)
			return
		case p.object.Spec.RestartPolicy == core.RestartPolicyNever:
			p.report(ctx, core.ContainerState{Terminated: state}, core.PodFailed)
			return
		default:
			p.report(ctx, waiting("CrashLoopBackOff", fmt.Sprintf("ended with code %d", state.ExitCode)), core.PodRunning)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		p.mutex.Lock()
		stopping = p.stopping
		p.mutex.Unlock()
		if stopping {
			return
		}
	}
}

func waiting(reason, message string) core.ContainerState {
	return core.ContainerState{Waiting: &core.ContainerStateWaiting{Reason: reason, Message: message}}
}

// once runs the process to its end.
func (p *pod) once(ctx context.Context, container core.Container, program string) (*core.ContainerStateTerminated, error) {
	home := filepath.Join(p.dir, "pods", p.object.Namespace+"_"+p.object.Name+"_"+string(p.object.UID))
	if err := os.MkdirAll(home, 0o755); err != nil {
		return nil, err
	}
	uid, gid := p.user(container)
	mounts, err := p.mounts(home, container, uid, gid)
	if err != nil {
		return nil, err
	}
	environment, err := p.environment(ctx, container)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := p.kubeconfig(ctx, home, uid, gid)
	if err != nil {
		return nil, err
	}
	args := append(append([]string{}, container.Command...), container.Args...)
	if len(container.Command) > 0 {
		args = args[1:] // the program is what the image has
	}
	for i, arg := range args {
		args[i] = p.placed(expand(arg, environment), mounts)
	}
	log, err := os.OpenFile(filepath.Join(home, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	command := exec.Command(program, args...)
	command.Dir, command.Stdout, command.Stderr = "/", log, log
	command.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "KUBECONFIG=" + kubeconfig}
	for name, value := range environment {
		command.Env = append(command.Env, name+"="+p.placed(value, mounts))
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		command.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
	p.mutex.Lock()
	if p.stopping {
		p.mutex.Unlock()
		return &core.ContainerStateTerminated{}, nil
	}
	err = command.Start()
	p.process, p.since = command.Process, meta.Now()
	p.mutex.Unlock()
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() { _ = command.Wait(); close(ended) }()
	p.probe(ctx, container, ended)
	return &core.ContainerStateTerminated{ExitCode: int32(max(command.ProcessState.ExitCode(), 0)), StartedAt: p.since, FinishedAt: meta.Now()}, nil
}

// probe tells whether the process is ready, and ends it when it is not alive, until it has ended.
func (p *pod) probe(ctx context.Context, container core.Container, ended chan struct{}) {
	failures := int32(0)
	for last := ""; ; {
		p.mutex.Lock()
		p.ready = p.asks(container, container.ReadinessProbe)
		now := fmt.Sprint(p.ready, p.restarts)
		p.mutex.Unlock()
		if now != last && p.report(ctx, core.ContainerState{Running: &core.ContainerStateRunning{StartedAt: p.since}}, core.PodRunning) {
			last = now
		}
		// A start takes its time.
		if live := container.LivenessProbe; live != nil && time.Since(p.since.Time) > 10*time.Second {
			if failures++; p.asks(container, live) {
				failures = 0
			}
			if failures > max(live.FailureThreshold, 3)*max(live.PeriodSeconds, 1) {
				p.mutex.Lock()
				p.signal(syscall.SIGKILL)
				p.mutex.Unlock()
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
func (p *pod) asks(container core.Container, probe *core.Probe) bool {
	if probe == nil || probe.HTTPGet == nil {
		return true
	}
	port := probe.HTTPGet.Port.IntValue()
	for _, one := range container.Ports {
		if one.Name == probe.HTTPGet.Port.StrVal {
			port = int(one.ContainerPort)
		}
	}
	client := http.Client{Timeout: time.Duration(max(probe.TimeoutSeconds, 1)) * time.Second}
	answer, err := client.Get("http://" + p.address + ":" + strconv.Itoa(port) + probe.HTTPGet.Path)
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode < 400
}

// user is who the process runs as, where this process may choose.
func (p *pod) user(container core.Container) (uid, gid uint32) {
	if security := p.object.Spec.SecurityContext; security != nil {
		if security.RunAsUser != nil {
			uid = uint32(*security.RunAsUser)
		}
		if security.FSGroup != nil {
			gid = uint32(*security.FSGroup)
		}
		if security.RunAsGroup != nil {
			gid = uint32(*security.RunAsGroup)
		}
	}
	if security := container.SecurityContext; security != nil && security.RunAsUser != nil {
		uid = uint32(*security.RunAsUser)
	}
	return uid, gid
}

// mounts are directories by the paths at which the container has them.
func (p *pod) mounts(home string, container core.Container, uid, gid uint32) (map[string]string, error) {
	mounts := map[string]string{}
	for _, mount := range container.VolumeMounts {
		for _, volume := range p.object.Spec.Volumes {
			if volume.Name != mount.Name {
				continue
			}
			path := filepath.Join(home, "volumes", volume.Name)
			switch {
			case volume.PersistentVolumeClaim != nil:
				path = p.claim(p.object.Namespace, volume.PersistentVolumeClaim.ClaimName)
			case volume.EmptyDir == nil:
				continue
			}
			path = filepath.Join(path, mount.SubPath)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return nil, err
			}
			if err := os.MkdirAll(path, 0o770); err != nil {
				return nil, err
			}
			if os.Getuid() == 0 {
				if err := os.Chown(path, int(uid), int(gid)); err != nil {
					return nil, err
				}
			}
			mounts[mount.MountPath] = path
		}
	}
	return mounts, nil
}

var bound = regexp.MustCompile(`^(--[a-z-]+-address=):(\d+)$`)

// placed is a text with the directories for the container's paths, and the pod's address for all interfaces.
func (p *pod) placed(text string, mounts map[string]string) string {
	text = bound.ReplaceAllString(text, "${1}"+p.address+":${2}")
	for inside, outside := range mounts {
		prefix, path, ok := strings.Cut(text, "=")
		if !ok {
			prefix, path = "", text
		} else {
			prefix += "="
		}
		if path == inside || strings.HasPrefix(path, inside+"/") {
			return prefix + outside + strings.TrimPrefix(path, inside)
		}
	}
	return text
}

func (p *pod) environment(ctx context.Context, container core.Container) (map[string]string, error) {
	environment := map[string]string{}
	for _, one := range container.Env {
		value := expand(one.Value, environment)
		if from := one.ValueFrom; from != nil {
			switch {
			case from.FieldRef != nil:
				value = p.field(from.FieldRef.FieldPath)
			case from.SecretKeyRef != nil:
				secret, err := p.client.CoreV1().Secrets(p.object.Namespace).Get(ctx, from.SecretKeyRef.Name, meta.GetOptions{})
				if err != nil && (from.SecretKeyRef.Optional == nil || !*from.SecretKeyRef.Optional) {
					return nil, err
				}
				value = string(secret.Data[from.SecretKeyRef.Key])
			case from.ConfigMapKeyRef != nil:
				config, err := p.client.CoreV1().ConfigMaps(p.object.Namespace).Get(ctx, from.ConfigMapKeyRef.Name, meta.GetOptions{})
				if err != nil && (from.ConfigMapKeyRef.Optional == nil || !*from.ConfigMapKeyRef.Optional) {
					return nil, err
				}
				value = config.Data[from.ConfigMapKeyRef.Key]
			}
		}
		environment[one.Name] = value
	}
	return environment, nil
}

func (p *pod) field(path string) string {
	switch path {
	case "metadata.name":
		return p.object.Name
	case "metadata.namespace":
		return p.object.Namespace
	case "metadata.uid":
		return string(p.object.UID)
	case "spec.nodeName":
		return p.name
	case "spec.serviceAccountName":
		return p.object.Spec.ServiceAccountName
	case "status.podIP", "status.hostIP":
		return p.address
	}
	return ""
}

var reference = regexp.MustCompile(`\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

// expand resolves $(NAME), as kubelet does.
func expand(text string, environment map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		if value, ok := environment[found[2:len(found)-1]]; ok {
			return value
		}
		return found
	})
}

// kubeconfig is a file with the token of the pod's ServiceAccount.
func (p *pod) kubeconfig(ctx context.Context, home string, uid, gid uint32) (string, error) {
	path := filepath.Join(home, "kubeconfig")
	seconds := int64(24 * 3600)
	request := &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authentication.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.object.Name, UID: p.object.UID},
	}}
	account := p.object.Spec.ServiceAccountName
	token, err := p.client.CoreV1().ServiceAccounts(p.object.Namespace).CreateToken(ctx, account, request, meta.CreateOptions{})
	if err != nil {
		return "", err
	}
	config := api.NewConfig()
	config.Clusters["here"] = &api.Cluster{Server: p.config.Host, CertificateAuthorityData: p.config.CAData, CertificateAuthority: p.config.CAFile}
	config.AuthInfos["pod"] = &api.AuthInfo{Token: token.Status.Token}
	config.Contexts["pod"] = &api.Context{Cluster: "here", AuthInfo: "pod", Namespace: p.object.Namespace}
	config.CurrentContext = "pod"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", err
	}
	if os.Getuid() == 0 {
		err = os.Chown(path, int(uid), int(gid))
	}
	return path, err
}

// report writes the pod's status; false when it could not.
func (p *pod) report(ctx context.Context, state core.ContainerState, phase core.PodPhase) bool {
	object, err := p.client.CoreV1().Pods(p.object.Namespace).Get(ctx, p.object.Name, meta.GetOptions{})
	if err != nil || object.UID != p.object.UID {
		return false
	}
	p.mutex.Lock()
	ready := p.ready && state.Running != nil
	restarts := p.restarts
	p.mutex.Unlock()
	truth := core.ConditionFalse
	if ready {
		truth = core.ConditionTrue
	}
	status := &object.Status
	status.Phase, status.PodIP, status.HostIP = phase, p.address, "127.0.0.1"
	status.PodIPs, status.HostIPs = []core.PodIP{{IP: p.address}}, []core.HostIP{{IP: "127.0.0.1"}}
	if status.StartTime == nil {
		now := meta.Now()
		status.StartTime = &now
	}
	started := state.Running != nil
	status.ContainerStatuses = []core.ContainerStatus{{
		Name: p.object.Spec.Containers[0].Name, Image: p.object.Spec.Containers[0].Image,
		State: state, Ready: ready, Started: &started, RestartCount: restarts,
	}}
	for _, kind := range []core.PodConditionType{core.ContainersReady, core.PodReady} {
		set(status, core.PodCondition{Type: kind, Status: truth, LastTransitionTime: meta.Now()})
	}
	for _, kind := range []core.PodConditionType{core.PodInitialized, core.PodReadyToStartContainers} {
		set(status, core.PodCondition{Type: kind, Status: core.ConditionTrue, LastTransitionTime: meta.Now()})
	}
	_, err = p.client.CoreV1().Pods(object.Namespace).UpdateStatus(ctx, object, meta.UpdateOptions{})
	return err == nil
}

func set(status *core.PodStatus, condition core.PodCondition) {
	for i, one := range status.Conditions {
		if one.Type == condition.Type {
			if one.Status != condition.Status {
				status.Conditions[i] = condition
			}
			return
		}
	}
	status.Conditions = append(status.Conditions, condition)
}
