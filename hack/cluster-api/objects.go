package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	sigsyaml "sigs.k8s.io/yaml"
)

var (
	definitions = schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	}
	webhookKinds = map[string]string{
		"MutatingWebhookConfiguration":   "mutatingwebhookconfigurations",
		"ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
	}
)

// cluster is the API server of the control plane.
type cluster struct{ dynamic.Interface }

func connect(kubeconfig string) (cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return cluster{}, err
	}
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	return cluster{client}, err
}

func (c cluster) apply(ctx context.Context, resource schema.GroupVersionResource, object *unstructured.Unstructured) error {
	options := metav1.ApplyOptions{FieldManager: "cluster-api", Force: true}
	if _, err := c.Resource(resource).Apply(ctx, object.GetName(), object, options); err != nil {
		return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

// established waits until every definition is served.
func (c cluster) established(ctx context.Context) error {
	return poll(ctx, "the definitions to be established", func() error {
		list, err := c.Resource(definitions).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, definition := range list.Items {
			conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
			is := false
			for _, condition := range conditions {
				fields, _ := condition.(map[string]any)
				is = is || fields["type"] == "Established" && fields["status"] == "True"
			}
			if !is {
				return fmt.Errorf("%s is not", definition.GetName())
			}
		}
		return nil
	})
}

// define applies the definitions of a manager, with what kustomize would add: the labels that say which versions follow
// which contract, and the conversion by the manager's webhook.
func (s *session) define(ctx context.Context, api cluster, m manager) error {
	labels, err := contractLabels(filepath.Join(s.home, m.name, "crd", "kustomization.yaml"))
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(s.home, m.name, "crd", "bases", "*.yaml"))
	if err != nil {
		return err
	}
	for _, file := range files {
		objects, err := read(file)
		if err != nil {
			return err
		}
		for _, object := range objects {
			set := object.GetLabels()
			if set == nil {
				set = map[string]string{}
			}
			// By it `clusterctl move` knows the kinds; `clusterctl init` puts it on them.
			set["clusterctl.cluster.x-k8s.io"] = ""
			for name, value := range labels {
				set[name] = value
			}
			object.SetLabels(set)
			versions, _, _ := unstructured.NestedSlice(object.Object, "spec", "versions")
			if len(versions) > 1 {
				err := unstructured.SetNestedMap(object.Object, map[string]any{
					"strategy": "Webhook",
					"webhook": map[string]any{
						"conversionReviewVersions": []any{"v1"},
						"clientConfig":             s.clientConfig(m, "/convert"),
					},
				}, "spec", "conversion")
				if err != nil {
					return err
				}
			}
			if err := api.apply(ctx, definitions, object); err != nil {
				return err
			}
		}
	}
	return nil
}

// contractLabels reads what a kustomization adds to all of its objects.
func contractLabels(file string) (map[string]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var kustomization struct {
		Labels []struct {
			Pairs map[string]string `json:"pairs"`
		} `json:"labels"`
	}
	if err := sigsyaml.Unmarshal(text, &kustomization); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	labels := map[string]string{}
	for _, label := range kustomization.Labels {
		for name, value := range label.Pairs {
			labels[name] = value
		}
	}
	return labels, nil
}

// admit applies the webhook configurations of a manager, each webhook called at its loopback address.
func (s *session) admit(ctx context.Context, api cluster, m manager) error {
	objects, err := read(filepath.Join(s.home, m.name, "webhook", "manifests.yaml"))
	if err != nil {
		return err
	}
	for _, object := range objects {
		resource, known := webhookKinds[object.GetKind()]
		if !known {
			return fmt.Errorf("%s of %s is no webhook configuration", object.GetKind(), m.name)
		}
		object.SetName(m.name + "-" + object.GetName())
		webhooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
		if err != nil {
			return err
		}
		for _, webhook := range webhooks {
			fields, _ := webhook.(map[string]any)
			path, found, _ := unstructured.NestedString(fields, "clientConfig", "service", "path")
			if !found {
				return fmt.Errorf("a webhook of %s names no service", object.GetName())
			}
			fields["clientConfig"] = s.clientConfig(m, path)
		}
		if err := unstructured.SetNestedSlice(object.Object, webhooks, "webhooks"); err != nil {
			return err
		}
		group := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: resource}
		if err := api.apply(ctx, group, object); err != nil {
			return err
		}
	}
	return nil
}

// clientConfig says how the API server calls a webhook.
func (s *session) clientConfig(m manager, path string) map[string]any {
	return map[string]any{
		"url":      "https://" + s.address(m.webhooks) + path,
		"caBundle": base64.StdEncoding.EncodeToString(s.ca),
	}
}

// read reads the objects of a file.
func read(file string) ([]*unstructured.Unstructured, error) {
	open, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer open.Close()
	var objects []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(open, 1<<20); ; {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); err == io.EOF {
			return objects, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}
