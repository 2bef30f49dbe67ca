// Command oracle is Helm itself, in-process, for the tests and benchmarks that hold our rendering against it.
package main

import (
	"fmt"
	"os"

	_ "helm.sh/helm/v3/pkg/engine"
)

func main() {
	commands := map[string]func(arguments []string) error{
		"serve": serve,
		"bench": bench,
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: oracle serve | oracle bench CHART...")
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}
