// Serves the files of a directory by HTTP, for trying things out: with ranges, and to this machine alone.
//
// usage: go run hack/serve.go [DIR [ADDRESS]]
package main

import (
	"fmt"
	"net/http"
	"os"
)

func main() {
	dir, address := "stacks/docker/images", "127.0.0.1:8088"
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if len(os.Args) > 2 {
		address = os.Args[2]
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		fmt.Fprintln(os.Stderr, "serve:", dir, "is no directory")
		os.Exit(1)
	}
	fmt.Printf("%s is served at http://%s/; Ctrl-C ends it\n", dir, address)
	err := http.ListenAndServe(address, http.FileServer(http.Dir(dir)))
	fmt.Fprintln(os.Stderr, "serve:", err)
	os.Exit(1)
}
