// Command node is a Node whose pods run as processes of this machine, for tests: no container runtime is needed.
//
//	node -kubeconfig FILE -dir DIR [-name NAME] [-taint] IMAGE=PROGRAM...
//
// Kubernetes' own controllers and scheduler do the rest. It ends on a signal, or when its standard input ends.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "node: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	kubeconfig := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "how the API server is reached")
	dir := flag.String("dir", "", "where logs and volumes are")
	name := flag.String("name", "node", "the Node's name, and value of its label hack/node")
	taint := flag.Bool("taint", false, "take only pods that tolerate the taint hack/node")
	flag.Parse()
	programs := map[string]string{}
	for _, pair := range flag.Args() {
		image, program, ok := strings.Cut(pair, "=")
		if !ok {
			return fmt.Errorf("%q is not IMAGE=PROGRAM", pair)
		}
		programs[image] = program
	}
	if *dir == "" || len(programs) == 0 {
		return fmt.Errorf("usage: node -kubeconfig FILE -dir DIR [-name NAME] [-taint] IMAGE=PROGRAM...")
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = -1, 0
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	go func() {
		buffer := make([]byte, 64)
		for {
			if _, err := os.Stdin.Read(buffer); err != nil {
				cancel()
				return
			}
		}
	}()
	node := newNode(client, config, *dir, *name, *taint, programs)
	return node.run(ctx)
}
