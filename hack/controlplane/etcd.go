package main

import (
	"errors"
	"net/url"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// startEtcd starts etcd and waits until it serves. It listens on Unix sockets in the
// control plane's directory: no port to find, and nobody else can reach it, which
// saves TLS. The sockets' names are relative; see etcdClientSocket.
func startEtcd(p paths) (*embed.Etcd, error) {
	// The log is allocated in advance, by default 64 MB twice: a lot of disk for a
	// cluster that holds a few objects for a minute.
	wal.SegmentSizeBytes = 8 << 20

	config := embed.NewConfig()
	config.Name = "controlplane"
	config.Dir = p.etcd()
	config.UnsafeNoFsync = true // nothing here needs to survive a power cut
	config.LogLevel = "error"
	config.LogOutputs = []string{"stderr"}
	// The only member elects itself after one election timeout.
	config.TickMs, config.ElectionMs = 10, 100
	config.ListenClientUrls = []url.URL{{Scheme: "unix", Host: etcdClientSocket}}
	config.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: etcdPeerSocket}}
	// What it tells other members and its clients: neither asks, but it insists on ports.
	config.AdvertiseClientUrls = []url.URL{{Scheme: "unix", Host: etcdClientSocket + ":0"}}
	config.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: etcdPeerSocket + ":0"}}
	config.InitialCluster = config.InitialClusterFromName(config.Name)

	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err := <-etcd.Err():
		return nil, err
	case <-time.After(time.Minute):
		etcd.Close()
		return nil, errors.New("etcd took more than a minute to start")
	}
}
