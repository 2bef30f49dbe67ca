// Command controlplane runs a real Kubernetes control plane - etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler - in one process, for tests and the demo.
//
// It is used through the scripts next to it, up and down; see README.md. There are
// two sides to it:
//
//	controlplane up [-owner PID:START] [-timeout D] DIR   starts the server, waits, returns
//	controlplane run OWNER DIR                            is the server; only "up" calls it
//
// One process, because nothing can then be left over: whatever ends it, even kill -9,
// ends every component at once.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	err := fmt.Errorf("usage: %s up [-owner PID:START] [-timeout DURATION] DIR", os.Args[0])
	if len(os.Args) > 1 {
		switch args := os.Args[2:]; os.Args[1] {
		case "up":
			flags := flag.NewFlagSet("up", flag.ExitOnError)
			ownerFlag := flags.String("owner", "0", "process to live and die with, as PID or PID:START; 0 for none")
			timeout := flags.Duration("timeout", 2*time.Minute, "how long the start may take")
			flags.Parse(args)
			if flags.NArg() == 1 {
				err = up(flags.Arg(0), *ownerFlag, *timeout)
			}
		case "run":
			if len(args) == 2 {
				err = run(args[0], args[1])
			}
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "controlplane: %v\n", err)
		os.Exit(1)
	}
}

// paths are the files of one control plane, all below its directory.
type paths string

func (p paths) log() string        { return string(p) + "/log" }
func (p paths) pid() string        { return string(p) + "/pid" }
func (p paths) lock() string       { return string(p) + "/lock" }
func (p paths) kubeconfig() string { return string(p) + "/kubeconfig" }
func (p paths) audit() string      { return string(p) + "/audit.log" }
func (p paths) etcd() string       { return string(p) + "/etcd" }
func (p paths) pki(name string) string {
	return string(p) + "/pki/" + name
}

// The names below are relative to the directory, which "run" makes its working
// directory: the path of a Unix socket may have 108 characters at most, and DIR can
// be longer than that.
const (
	etcdClientSocket = "etcd-client.sock"
	etcdPeerSocket   = "etcd-peer.sock"
)

// clear removes what an earlier control plane left in the directory. Each one starts
// empty; nothing but its own files is touched.
func (p paths) clear() error {
	for _, path := range []string{
		p.log(), p.pid(), p.kubeconfig(), p.audit(), p.etcd(), p.pki(""),
		string(p) + "/" + etcdClientSocket, string(p) + "/" + etcdPeerSocket,
	} {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// writeFile writes a file that no reader sees half-written.
func writeFile(path string, content []byte) error {
	if err := os.WriteFile(path+".tmp", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}
