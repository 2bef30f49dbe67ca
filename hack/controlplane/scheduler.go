package main

import (
	"context"

	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

const schedulerUser = "system:kube-scheduler"

// runScheduler runs kube-scheduler until the context ends.
func runScheduler(ctx context.Context, p paths) error {
	opts := options.NewOptions()
	err := parseFlags("kube-scheduler", *opts.Flags, []string{
		"--kubeconfig=" + p.pki(schedulerConfig),
		"--secure-port=0", // serves nothing
		"--leader-elect=false",
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
	})
	if err != nil {
		return err
	}
	config, scheduler, err := app.Setup(ctx, opts)
	if err != nil {
		return err
	}
	return app.Run(ctx, config, scheduler)
}
