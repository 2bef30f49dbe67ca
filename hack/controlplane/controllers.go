package main

import (
	"context"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	cacheddiscovery "k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
)

const managerUser = "system:kube-controller-manager"

// The controllers that run. The garbage collector is missing because it runs on its
// own, see runGarbageCollector; those for nodes, volumes and certificate requests
// because nothing here has any.
var controllers = []string{
	names.ClusterRoleAggregationController,
	names.CronJobController,
	names.DaemonSetController,
	names.DeploymentController,
	names.EndpointSliceController,
	names.EndpointsController,
	names.HorizontalPodAutoscalerController,
	names.JobController,
	names.NamespaceController,
	names.ReplicaSetController,
	names.ResourceQuotaController,
	names.RootCACertificatePublisherController,
	names.ServiceAccountController,
	names.ServiceAccountTokenController,
	names.StatefulSetController,
	names.TTLAfterFinishedController,
}

// runControllerManager runs kube-controller-manager until the context ends.
func runControllerManager(ctx context.Context, p paths) error {
	opts, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return err
	}
	known, disabled, aliases := app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()
	flags := opts.Flags(known, disabled, aliases)
	opts.ParsedFlags = &flags
	err = parseFlags("kube-controller-manager", flags, []string{
		"--kubeconfig=" + p.pki(managerConfig),
		"--secure-port=0", // serves nothing
		"--leader-elect=false",
		"--controllers=" + strings.Join(controllers, ","),
		"--controller-shutdown-timeout=3s",
		"--service-account-private-key-file=" + p.pki(accountKey),
		"--root-ca-file=" + p.pki(caCert),
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
		"--horizontal-pod-autoscaler-sync-period=3s",
	})
	if err != nil {
		return err
	}
	config, err := opts.Config(ctx, known, disabled, aliases)
	if err != nil {
		return err
	}
	return app.Run(ctx, config.Complete())
}

// gcPeriod is how often the garbage collector looks for new kinds of objects.
const gcPeriod = time.Second

// runGarbageCollector runs the garbage collector until the context ends. It is the
// controller manager's own one, but that looks for new custom resources only every 30
// seconds, and until then does not notice when one of them that owns something is
// deleted. A test creates its custom resources and deletes them within a few seconds.
func runGarbageCollector(ctx context.Context, p paths) error {
	config, err := clientcmd.BuildConfigFromFlags("", p.pki(managerConfig))
	if err != nil {
		return err
	}
	config = rest.AddUserAgent(config, "generic-garbage-collector")
	config.QPS, config.Burst = 500, 1000
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cacheddiscovery.NewMemCacheClient(client.Discovery()))
	factory := metadataFactory{metadatainformer.NewSharedInformerFactory(metadataClient, 0)}
	started := make(chan struct{})
	close(started)
	collector, err := garbagecollector.NewGarbageCollector(ctx, client, metadataClient, mapper,
		garbagecollector.DefaultIgnoredResources(), factory, started)
	if err != nil {
		return err
	}
	go collector.Sync(ctx, client.Discovery(), gcPeriod)
	collector.Run(ctx, 5, 30*time.Second)
	return nil
}

// metadataFactory lets the garbage collector watch nothing but metadata, even of the
// built-in kinds.
type metadataFactory struct {
	metadatainformer.SharedInformerFactory
}

func (f metadataFactory) ForResource(resource schema.GroupVersionResource) (informers.GenericInformer, error) {
	return f.SharedInformerFactory.ForResource(resource), nil
}
