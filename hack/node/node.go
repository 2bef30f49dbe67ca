package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// label is the label and the taint of the Node, with its name as value.
const label = "hack/node"

// period is how often the API server is asked for pods and claims.
const period = 200 * time.Millisecond

// node is the Node and what runs on it.
type node struct {
	client   kubernetes.Interface
	config   *rest.Config
	dir      string
	name     string
	taint    bool
	programs map[string]string

	mutex   sync.Mutex // of pods
	pods    map[types.UID]*pod
	running sync.WaitGroup
	// each pod has an address of its own
	addresses int
}

func newNode(client kubernetes.Interface, config *rest.Config, dir, name string, taint bool, programs map[string]string) *node {
	return &node{client: client, config: config, dir: dir, name: name, taint: taint, programs: programs,
		pods: map[types.UID]*pod{}, addresses: os.Getpid() % 200 * 250}
}

// run keeps the Node until the context ends, then ends its pods' processes and takes it away.
func (n *node) run(ctx context.Context) error {
	if err := n.register(ctx); err != nil {
		return err
	}
	if trial, err := newLimit("trial", 1<<20); err == nil {
		trial.remove()
		fmt.Println("ready")
	} else {
		fmt.Println("ready, without limits of memory")
	}
	for ctx.Err() == nil {
		if err := n.sync(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "node: %v\n", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(period):
		}
	}
	for _, pod := range n.pods {
		pod.stop(time.Second)
	}
	n.running.Wait()
	last, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return n.client.CoreV1().Nodes().Delete(last, n.name, meta.DeleteOptions{})
}

func (n *node) register(ctx context.Context) error {
	port, err := n.serve()
	if err != nil {
		return err
	}
	room := core.ResourceList{
		core.ResourceCPU: resource.MustParse("64"), core.ResourceMemory: resource.MustParse("256Gi"),
		core.ResourcePods: resource.MustParse("500"),
	}
	object := &core.Node{ObjectMeta: meta.ObjectMeta{
		Name: n.name, Labels: map[string]string{label: n.name, core.LabelHostname: n.name},
	}}
	if n.taint {
		object.Spec.Taints = []core.Taint{{Key: label, Value: n.name, Effect: core.TaintEffectNoSchedule}}
	}
	made, err := n.client.CoreV1().Nodes().Create(ctx, object, meta.CreateOptions{})
	if err != nil {
		return err
	}
	made.Status.Capacity, made.Status.Allocatable = room, room
	made.Status.Addresses = []core.NodeAddress{{Type: core.NodeInternalIP, Address: "127.0.0.1"}}
	made.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	made.Status.Conditions = []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue, Reason: "Ready"}}
	_, err = n.client.CoreV1().Nodes().UpdateStatus(ctx, made, meta.UpdateOptions{})
	return err
}

// sync starts what has come, ends what has to go, and binds claims.
func (n *node) sync(ctx context.Context) error {
	list, err := n.client.CoreV1().Pods("").List(ctx, meta.ListOptions{FieldSelector: "spec.nodeName=" + n.name})
	if err != nil {
		return err
	}
	here := map[types.UID]bool{}
	for i := range list.Items {
		object := &list.Items[i]
		here[object.UID] = true
		known, ok := n.pods[object.UID]
		switch {
		case !ok && (object.Status.Phase == core.PodSucceeded || object.Status.Phase == core.PodFailed) && object.DeletionTimestamp == nil:
			// It ran when another process was the Node.
		case !ok && object.DeletionTimestamp == nil:
			n.addresses++
			known = newPod(n, object, fmt.Sprintf("127.%d.%d.%d", 1+n.addresses/62500%200, n.addresses/250%250, 1+n.addresses%250))
			n.mutex.Lock()
			n.pods[object.UID] = known
			n.mutex.Unlock()
			n.running.Go(func() { known.run(ctx) })
		case object.DeletionTimestamp != nil:
			if ok {
				grace := time.Duration(0)
				if object.DeletionGracePeriodSeconds != nil {
					grace = time.Duration(*object.DeletionGracePeriodSeconds) * time.Second
				}
				known.stop(grace)
				if !known.ended() {
					continue
				}
			}
			zero := int64(0)
			_ = n.client.CoreV1().Pods(object.Namespace).Delete(ctx, object.Name, meta.DeleteOptions{
				GracePeriodSeconds: &zero, Preconditions: &meta.Preconditions{UID: &object.UID},
			})
		}
	}
	for uid, pod := range n.pods {
		if !here[uid] {
			pod.stop(0)
			if pod.ended() {
				n.mutex.Lock()
				delete(n.pods, uid)
				n.mutex.Unlock()
			}
		}
	}
	return n.bind(ctx)
}

// bind stands in for the provisioner and the controller of volumes: each claim that pods of this Node wait for gets a
// directory.
func (n *node) bind(ctx context.Context) error {
	claims, err := n.client.CoreV1().PersistentVolumeClaims("").List(ctx, meta.ListOptions{})
	if err != nil {
		return err
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Status.Phase == core.ClaimBound || claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName != n.name {
			continue
		}
		path := n.claim(claim.Namespace, claim.Name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		volume := &core.PersistentVolume{
			ObjectMeta: meta.ObjectMeta{Name: "pv-" + string(claim.UID)},
			Spec: core.PersistentVolumeSpec{
				Capacity:    claim.Spec.Resources.Requests,
				AccessModes: claim.Spec.AccessModes, StorageClassName: n.name,
				PersistentVolumeReclaimPolicy: core.PersistentVolumeReclaimDelete,
				PersistentVolumeSource:        core.PersistentVolumeSource{HostPath: &core.HostPathVolumeSource{Path: path}},
				ClaimRef:                      &core.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			},
		}
		made, err := n.client.CoreV1().PersistentVolumes().Create(ctx, volume, meta.CreateOptions{})
		if errors.IsAlreadyExists(err) { // from a round that somebody else's write cut short
			made, err = n.client.CoreV1().PersistentVolumes().Get(ctx, volume.Name, meta.GetOptions{})
		}
		if err != nil {
			return err
		}
		made.Status.Phase = core.VolumeBound
		if _, err := n.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, made, meta.UpdateOptions{}); err != nil {
			return err
		}
		claim.Spec.VolumeName = made.Name
		meta.SetMetaDataAnnotation(&claim.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
		claim, err = n.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, meta.UpdateOptions{})
		if err != nil {
			return err
		}
		claim.Status.Phase, claim.Status.AccessModes, claim.Status.Capacity = core.ClaimBound, volume.Spec.AccessModes, volume.Spec.Capacity
		if _, err := n.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, claim, meta.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// claim is the directory of a claim.
func (n *node) claim(namespace, name string) string {
	return filepath.Join(n.dir, "claims", namespace, name)
}
