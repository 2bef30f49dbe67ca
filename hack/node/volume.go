package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authentication "k8s.io/api/authentication/v1"
	core "k8s.io/api/core/v1"
	kubernetes "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// volume is the directory of a volume of this pod alone.
func (p *pod) volume(name string) string {
	return filepath.Join(p.home(), "volumes", name)
}

// isWritable is whether a volume is for more than files of the API server's.
func (p *pod) isWritable(name string) bool {
	return slices.ContainsFunc(p.object.Spec.Volumes, func(volume core.Volume) bool {
		return volume.Name == name && (volume.EmptyDir != nil || volume.PersistentVolumeClaim != nil)
	})
}

// provide makes the directories of all volumes, and waits for what they need; nil when the pod has to end meanwhile.
func (p *pod) provide(ctx context.Context) map[string]string {
	for told := ""; ; {
		paths, err := p.volumes(ctx)
		if err == nil {
			return paths
		}
		if err.Error() != told {
			told = err.Error()
			p.event(ctx, core.EventTypeWarning, "FailedMount", told)
		}
		if !p.pause(ctx, time.Second) {
			return nil
		}
	}
}

func (p *pod) volumes(ctx context.Context) (map[string]string, error) {
	paths := map[string]string{}
	for _, volume := range p.object.Spec.Volumes {
		path := p.volume(volume.Name)
		if claim := volume.PersistentVolumeClaim; claim != nil {
			path = p.claim(p.object.Namespace, claim.ClaimName)
		}
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, err
		}
		var err error
		switch {
		case volume.EmptyDir != nil, volume.PersistentVolumeClaim != nil:
			err = p.open(path)
		case volume.Secret != nil:
			source := volume.Secret
			var data map[string][]byte
			if data, err = p.secret(ctx, source.SecretName, source.Optional); err == nil {
				err = p.write(path, data, source.Items, source.DefaultMode)
			}
		case volume.ConfigMap != nil:
			source := volume.ConfigMap
			var data map[string][]byte
			if data, err = p.configMap(ctx, source.Name, source.Optional); err == nil {
				err = p.write(path, data, source.Items, source.DefaultMode)
			}
		case volume.DownwardAPI != nil:
			err = p.downward(path, volume.DownwardAPI.Items, volume.DownwardAPI.DefaultMode)
		case volume.Projected != nil:
			err = p.project(ctx, path, volume.Projected)
		default:
			err = errors.New("this Node has no volumes of its kind")
		}
		if err != nil {
			return nil, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", volume.Name, err)
		}
		paths[volume.Name] = path
	}
	return paths, nil
}

func (p *pod) project(ctx context.Context, path string, projected *core.ProjectedVolumeSource) error {
	for _, source := range projected.Sources {
		var err error
		switch {
		case source.ServiceAccountToken != nil:
			var token string
			if token, err = p.token(ctx, source.ServiceAccountToken); err == nil {
				err = p.write(path, map[string][]byte{source.ServiceAccountToken.Path: []byte(token)}, nil, projected.DefaultMode)
			}
		case source.Secret != nil:
			var data map[string][]byte
			if data, err = p.secret(ctx, source.Secret.Name, source.Secret.Optional); err == nil {
				err = p.write(path, data, source.Secret.Items, projected.DefaultMode)
			}
		case source.ConfigMap != nil:
			var data map[string][]byte
			if data, err = p.configMap(ctx, source.ConfigMap.Name, source.ConfigMap.Optional); err == nil {
				err = p.write(path, data, source.ConfigMap.Items, projected.DefaultMode)
			}
		case source.DownwardAPI != nil:
			err = p.downward(path, source.DownwardAPI.Items, projected.DefaultMode)
		default:
			err = errors.New("this Node has no projections of its kind")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// open lets the pod write there.
func (p *pod) open(path string) error {
	if os.Getuid() == 0 {
		if err := os.Chown(path, -1, p.group()); err != nil {
			return err
		}
	}
	return os.Chmod(path, 0o777|os.ModeSetgid)
}

// group is who files of volumes belong to.
func (p *pod) group() int {
	if security := p.object.Spec.SecurityContext; security != nil && security.FSGroup != nil {
		return int(*security.FSGroup)
	}
	return -1
}

// write makes files, all of the data or what is asked for.
func (p *pod) write(path string, data map[string][]byte, items []core.KeyToPath, mode *int32) error {
	if len(items) == 0 {
		for key := range data {
			items = append(items, core.KeyToPath{Key: key, Path: key})
		}
	}
	for _, item := range items {
		content, ok := data[item.Key]
		if !ok {
			return fmt.Errorf("references non-existent config key: %s", item.Key)
		}
		file, permission := filepath.Join(path, item.Path), os.FileMode(0o644)
		if mode != nil {
			permission = os.FileMode(*mode)
		}
		if item.Mode != nil {
			permission = os.FileMode(*item.Mode)
		}
		if p.group() >= 0 {
			permission |= 0o440
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return err
		}
		if os.Getuid() == 0 {
			if err := os.Chown(file, -1, p.group()); err != nil {
				return err
			}
		}
		if err := os.Chmod(file, permission); err != nil {
			return err
		}
	}
	return nil
}

func (p *pod) secret(ctx context.Context, name string, optional *bool) (map[string][]byte, error) {
	found, err := p.client.CoreV1().Secrets(p.object.Namespace).Get(ctx, name, meta.GetOptions{})
	if kubernetes.IsNotFound(err) && optional != nil && *optional {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return found.Data, nil
}

func (p *pod) configMap(ctx context.Context, name string, optional *bool) (map[string][]byte, error) {
	found, err := p.client.CoreV1().ConfigMaps(p.object.Namespace).Get(ctx, name, meta.GetOptions{})
	if kubernetes.IsNotFound(err) && optional != nil && *optional {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	data := maps.Clone(found.BinaryData)
	if data == nil {
		data = map[string][]byte{}
	}
	for key, value := range found.Data {
		data[key] = []byte(value)
	}
	return data, nil
}

// token is one of the pod's ServiceAccount.
func (p *pod) token(ctx context.Context, source *core.ServiceAccountTokenProjection) (string, error) {
	request := &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		BoundObjectRef:    &authentication.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.object.Name, UID: p.object.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	accounts := p.client.CoreV1().ServiceAccounts(p.object.Namespace)
	made, err := accounts.CreateToken(ctx, p.object.Spec.ServiceAccountName, request, meta.CreateOptions{})
	if err != nil {
		return "", err
	}
	return made.Status.Token, nil
}

func (p *pod) downward(path string, items []core.DownwardAPIVolumeFile, mode *int32) error {
	data := map[string][]byte{}
	for _, item := range items {
		if item.FieldRef != nil {
			data[item.Path] = []byte(p.field(item.FieldRef.FieldPath))
		}
	}
	return p.write(path, data, nil, mode)
}

// field is the value of a field of the pod, as the downward API has it.
func (p *pod) field(path string) string {
	listed := func(all map[string]string) string {
		var lines []string
		for _, key := range slices.Sorted(maps.Keys(all)) {
			lines = append(lines, fmt.Sprintf("%s=%q", key, all[key]))
		}
		return strings.Join(lines, "\n")
	}
	of := func(all map[string]string, kind string) (string, bool) {
		key, ok := strings.CutPrefix(path, "metadata."+kind+"['")
		return all[strings.TrimSuffix(key, "']")], ok
	}
	if value, ok := of(p.object.Labels, "labels"); ok {
		return value
	}
	if value, ok := of(p.object.Annotations, "annotations"); ok {
		return value
	}
	return map[string]string{
		"metadata.name": p.object.Name, "metadata.namespace": p.object.Namespace, "metadata.uid": string(p.object.UID),
		"metadata.labels": listed(p.object.Labels), "metadata.annotations": listed(p.object.Annotations),
		"spec.nodeName": p.name, "spec.serviceAccountName": p.object.Spec.ServiceAccountName,
		"status.podIP": p.address, "status.podIPs": p.address, "status.hostIP": "127.0.0.1",
	}[path]
}

// event tells of the pod.
func (p *pod) event(ctx context.Context, kind, reason, message string) {
	now := meta.Now()
	_, _ = p.client.CoreV1().Events(p.object.Namespace).Create(ctx, &core.Event{
		ObjectMeta:     meta.ObjectMeta{GenerateName: p.object.Name + "."},
		InvolvedObject: core.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.object.Namespace, Name: p.object.Name, UID: p.object.UID},
		Type:           kind, Reason: reason, Message: message, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: core.EventSource{Component: "kubelet", Host: p.name},
	}, meta.CreateOptions{})
}
