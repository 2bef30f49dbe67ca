package main

import (
	"context"
	"net"
	"os"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// Services get their addresses from serviceRange; the first one, serviceIP, is that of
// the service "kubernetes".
const (
	serviceRange = "10.96.0.0/16"
	serviceIP    = "10.96.0.1"
)

// The audit log is there to count what clients ask for. What the control plane's own
// components read, more than all the rest together, is left out of it.
const auditPolicyYAML = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted, Panic]
rules:
- level: None
  users: ["system:apiserver", "` + managerUser + `", "` + schedulerUser + `"]
  verbs: [get, list, watch]
- level: Metadata
`

// newAPIServer prepares kube-apiserver, which is run by the function returned. It
// takes an open listener instead of a port, so that no other process can get the
// port first.
func newAPIServer(ctx context.Context, p paths, listener net.Listener) (func(context.Context) error, error) {
	// Warnings to clients are for people; the components talk to it as well.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	if err := os.WriteFile(p.pki(auditPolicy), []byte(auditPolicyYAML), 0o600); err != nil {
		return nil, err
	}
	opts := options.NewServerRunOptions()
	err := parseFlags("kube-apiserver", opts.Flags(), []string{
		"--etcd-servers=unix://" + etcdClientSocket,
		"--etcd-compaction-interval=0",
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--tls-cert-file=" + p.pki(servingCert),
		"--tls-private-key-file=" + p.pki(servingKey),
		"--client-ca-file=" + p.pki(caCert),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + p.pki(accountPublic),
		"--service-account-signing-key-file=" + p.pki(accountKey),
		"--service-cluster-ip-range=" + serviceRange,
		"--authorization-mode=RBAC",
		"--allow-privileged=true",
		// A loopback address is no valid endpoint of the service "kubernetes".
		"--endpoint-reconciler-type=none",
		// There is no kubelet and no node controller: a Node that a test makes up is
		// ready when it says so, and is not tainted until a controller agrees.
		"--disable-admission-plugins=TaintNodesByCondition",
		// Fair queueing takes memory and time, and has nothing to be fair about here.
		"--enable-priority-and-fairness=false",
		"--max-requests-inflight=2000",
		"--max-mutating-requests-inflight=1000",
		"--profiling=false",
		// An end waits for requests, but a client's watches for 2 seconds and not 60.
		"--shutdown-send-retry-after=true",
		"--audit-policy-file=" + p.pki(auditPolicy),
		"--audit-log-path=" + p.audit(),
		"--audit-log-mode=blocking", // a request's line is there soon after its answer
		"--audit-log-maxsize=10000", // never start a new file
	})
	if err != nil {
		return nil, err
	}
	opts.SecureServing.Listener = listener
	opts.SecureServing.BindPort = listener.Addr().(*net.TCPAddr).Port
	// The feature gates are shared by all components of the process; the other ones
	// find them set.
	if err := opts.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return nil, err
	}
	completed, err := opts.Complete(ctx)
	if err != nil {
		return nil, err
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return nil, utilerrors.NewAggregate(errs)
	}
	return func(ctx context.Context) error { return app.Run(ctx, completed) }, nil
}

// parseFlags sets a component's options as its command line would. The components'
// own commands can't be used: each installs signal handlers, which works only once in
// a process.
func parseFlags(name string, sets cliflag.NamedFlagSets, args []string) error {
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	flags.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	for _, set := range sets.FlagSets {
		flags.AddFlagSet(set)
	}
	return flags.Parse(args)
}
