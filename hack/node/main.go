// Command node is a Node whose pods run as processes of this machine, for tests: no container runtime is needed.
//
//	node -kubeconfig FILE -dir DIR [-name NAME] [-taint] IMAGE=PROGRAM...
//
// A pod of IMAGE sees this machine's programs and libraries, read-only, and has PROGRAM in /usr/local/bin as its entrypoint.
// Kubernetes' own controllers and scheduler do the rest. It ends on a signal, or when its standard input ends.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == inside {
		if err := enter(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(128) // as a container runtime that can't start it
	}
	if err := possible(); err != nil {
		fmt.Fprintf(os.Stderr, "node: this user may make no namespaces, so there can be no containers: %v\n", err)
		os.Exit(3)
	}
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "node: %v\n", err)
		os.Exit(1)
	}
}

// inside is the argument of the program that becomes a container's.
const inside = "-in-container"

// possible is an error where containers can't be.
func possible() error {
	command := exec.Command("/bin/true")
	command.SysProcAttr = isolated()
	return command.Run()
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
		path, err := filepath.Abs(program)
		if err != nil {
			return err
		}
		programs[image] = path
	}
	if *dir == "" || len(programs) == 0 {
		return fmt.Errorf("usage: node -kubeconfig FILE -dir DIR [-name NAME] [-taint] IMAGE=PROGRAM...")
	}
	path, err := filepath.Abs(*dir)
	if err != nil {
		return err
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
	node := newNode(client, config, path, *name, *taint, programs)
	return node.run(ctx)
}
