package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pod is a Pod whose containers are processes of this machine, each with a root of its own (root.go). Volumes, users,
// environment, token, limit of memory, probes, restarts, logs and termination are as kubelet has them. The network is the
// machine's: an address like :8080 in the arguments becomes one of the pod's own, 127.x.y.z:8080.
type pod struct {
	*node
	object  *core.Pod
	address string
	done    chan struct{}

	mutex      sync.Mutex
	containers []*container
	stopping   bool
	end        time.Time // of all processes, when stopping
	// why all of it had to end, for example Evicted
	reason, message string
	phase           core.PodPhase
	since           *meta.Time
	changed         bool
}

func newPod(n *node, object *core.Pod, address string) *pod {
	p := &pod{node: n, object: object, address: address, done: make(chan struct{}), phase: core.PodPending, changed: true}
	for _, spec := range object.Spec.InitContainers {
		p.containers = append(p.containers, newContainer(p, spec, true))
	}
	for _, spec := range object.Spec.Containers {
		p.containers = append(p.containers, newContainer(p, spec, false))
	}
	return p
}

func (p *pod) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// home is where its files are.
func (p *pod) home() string {
	return filepath.Join(p.dir, "pods", p.object.Namespace+"_"+p.object.Name+"_"+string(p.object.UID))
}

// stop asks all processes to end, once, and ends them after the grace period, or after a shorter one that is given later.
func (p *pod) stop(grace time.Duration) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	end := time.Now().Add(grace)
	if p.stopping && !end.Before(p.end) {
		return
	}
	p.end = end
	if !p.stopping {
		p.stopping = true
		p.signal(syscall.SIGTERM)
	}
	time.AfterFunc(grace, func() {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		p.signal(syscall.SIGKILL)
	})
}

// signal is for the first process of each container; the others go with it. The mutex is held.
func (p *pod) signal(signal syscall.Signal) {
	for _, one := range p.containers {
		if one.process != nil {
			_ = one.process.Signal(signal)
		}
	}
}

// fail ends the whole pod.
func (p *pod) fail(reason, message string) {
	p.mutex.Lock()
	if p.reason == "" {
		p.reason, p.message = reason, message
	}
	p.mutex.Unlock()
	p.stop(time.Second)
}

func (p *pod) isStopping() bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.stopping
}

// pause waits; false when the pod has to end meanwhile.
func (p *pod) pause(ctx context.Context, long time.Duration) bool {
	for until := time.Now().Add(long); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		if ctx.Err() != nil || p.isStopping() {
			return false
		}
	}
	return true
}

// run takes the pod through its life, and tells the API server of it until it is over.
func (p *pod) run(ctx context.Context) {
	defer close(p.done)
	over := make(chan struct{})
	go func() { defer close(over); p.live(ctx) }()
	for {
		select {
		case <-over:
			patience := 10 * time.Second
			if ctx.Err() != nil {
				patience = time.Second
			}
			last, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			for !p.report(last) && last.Err() == nil {
				time.Sleep(period)
			}
			return
		case <-time.After(period / 2):
			p.report(ctx)
		}
	}
}

func (p *pod) live(ctx context.Context) {
	volumes := p.provide(ctx)
	if volumes == nil {
		return
	}
	now := meta.Now()
	p.mutex.Lock()
	p.since = &now
	p.mutex.Unlock()
	watched, end := context.WithCancel(ctx)
	defer end()
	go p.bound(watched)
	var sidecars, mains sync.WaitGroup
	for _, one := range p.containers {
		switch always := one.spec.RestartPolicy != nil && *one.spec.RestartPolicy == core.ContainerRestartPolicyAlways; {
		case one.isInit && always:
			sidecars.Go(func() { one.run(ctx, volumes, core.RestartPolicyAlways) })
			for !one.hasStarted() && p.pause(ctx, period) {
			}
		case one.isInit:
			policy := p.object.Spec.RestartPolicy
			if policy == core.RestartPolicyAlways {
				policy = core.RestartPolicyOnFailure
			}
			if !one.run(ctx, volumes, policy) {
				p.stop(0)
			}
		default:
			mains.Go(func() { one.run(ctx, volumes, p.object.Spec.RestartPolicy) })
		}
		if p.isStopping() {
			break
		}
	}
	mains.Wait()
	p.stop(time.Second)
	sidecars.Wait()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.phase, p.changed = core.PodSucceeded, true
	for _, one := range p.containers {
		if state := one.state.Terminated; p.reason != "" || !one.isSidecar() && (state == nil || state.ExitCode != 0) {
			p.phase = core.PodFailed
		}
	}
}

// bound ends a pod that takes longer, or more room, than its spec says.
func (p *pod) bound(ctx context.Context) {
	for p.pause(ctx, time.Second) {
		if most := p.object.Spec.ActiveDeadlineSeconds; most != nil && time.Since(p.since.Time) > time.Duration(*most)*time.Second {
			p.fail("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
		}
		for _, volume := range p.object.Spec.Volumes {
			if volume.EmptyDir == nil || volume.EmptyDir.SizeLimit == nil || volume.EmptyDir.SizeLimit.IsZero() {
				continue
			}
			if size(p.volume(volume.Name)) > volume.EmptyDir.SizeLimit.Value() {
				p.fail("Evicted", fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", volume.Name, volume.EmptyDir.SizeLimit.String()))
			}
		}
	}
}

// size of all files below a directory.
func size(directory string) (bytes int64) {
	_ = filepath.WalkDir(directory, func(_ string, entry os.DirEntry, err error) error {
		if err != nil {
			return nil // gone meanwhile
		}
		if info, err := entry.Info(); err == nil {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				bytes += stat.Blocks * 512
			}
		}
		return nil
	})
	return bytes
}

// report writes the pod's status if it is another one; false when it could not.
func (p *pod) report(ctx context.Context) bool {
	p.mutex.Lock()
	if !p.changed {
		p.mutex.Unlock()
		return true
	}
	p.changed = false
	inits, mains, phase, isReady, isInitialized := []core.ContainerStatus{}, []core.ContainerStatus{}, p.phase, true, true
	for _, one := range p.containers {
		status := one.status()
		if one.isInit {
			inits = append(inits, status)
			isInitialized = isInitialized && (status.Ready || one.isSidecar() && *status.Started)
			continue
		}
		mains = append(mains, status)
		isReady = isReady && status.Ready
		if phase == core.PodPending && (status.State.Running != nil || status.LastTerminationState.Terminated != nil) {
			phase = core.PodRunning
		}
	}
	since, reason, message := p.since, p.reason, p.message
	p.mutex.Unlock()

	again := func(err error) bool {
		p.mutex.Lock()
		defer p.mutex.Unlock()
		p.changed = p.changed || err != nil
		return err == nil
	}
	object, err := p.client.CoreV1().Pods(p.object.Namespace).Get(ctx, p.object.Name, meta.GetOptions{})
	if errors.IsNotFound(err) || err == nil && object.UID != p.object.UID {
		return true // nobody's any more
	}
	if err != nil {
		return again(err)
	}
	status := &object.Status
	status.Phase, status.Reason, status.Message, status.StartTime = phase, reason, message, since
	status.PodIP, status.PodIPs = p.address, []core.PodIP{{IP: p.address}}
	status.HostIP, status.HostIPs = "127.0.0.1", []core.HostIP{{IP: "127.0.0.1"}}
	status.InitContainerStatuses, status.ContainerStatuses = inits, mains
	if len(inits) == 0 {
		status.InitContainerStatuses = nil
	}
	set(status, core.ContainersReady, isReady)
	set(status, core.PodReady, isReady)
	set(status, core.PodInitialized, isInitialized)
	set(status, core.PodReadyToStartContainers, since != nil)
	_, err = p.client.CoreV1().Pods(object.Namespace).UpdateStatus(ctx, object, meta.UpdateOptions{})
	return again(err)
}

func set(status *core.PodStatus, kind core.PodConditionType, truth bool) {
	condition := core.PodCondition{Type: kind, Status: core.ConditionFalse, LastTransitionTime: meta.Now()}
	if truth {
		condition.Status = core.ConditionTrue
	}
	for i, one := range status.Conditions {
		if one.Type == kind {
			if one.Status != condition.Status {
				status.Conditions[i] = condition
			}
			return
		}
	}
	status.Conditions = append(status.Conditions, condition)
}
