#!/usr/bin/env bash
# usage: envtest.sh ASSETS DIR OWNER
# Starts etcd and kube-apiserver of ASSETS (the envtest convention) on loopback, writes
# DIR/kubeconfig, returns when they answer, and ends them with the process OWNER.
set -euo pipefail
assets=$1 dir=$2 owner=$3
rm -rf "$dir"
mkdir -p "$dir"
cd "$dir"

free_port() { # a port that nothing listens on
    local port
    while port=$((20000 + RANDOM)); (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
    echo "$port"
}
etcd=$(free_port) peer=$(free_port) api=$(free_port)
token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
openssl genrsa -out sa.key 2048 2>/dev/null
echo "$token,admin,admin,system:masters" >tokens
cat >kubeconfig <<END
apiVersion: v1
kind: Config
current-context: e2e
clusters: [{name: e2e, cluster: {server: "https://127.0.0.1:$api", insecure-skip-tls-verify: true}}]
users: [{name: e2e, user: {token: "$token"}}]
contexts: [{name: e2e, context: {cluster: e2e, user: e2e}}]
END

(
    "$assets/etcd" --data-dir etcd --unsafe-no-fsync \
        --listen-client-urls "http://127.0.0.1:$etcd" --advertise-client-urls "http://127.0.0.1:$etcd" \
        --listen-peer-urls "http://127.0.0.1:$peer" &
    store=$!
    "$assets/kube-apiserver" --etcd-servers "http://127.0.0.1:$etcd" --secure-port "$api" --bind-address 127.0.0.1 \
        --cert-dir certs --token-auth-file tokens --authorization-mode RBAC --allow-privileged=true \
        --service-account-issuer https://e2e --service-account-key-file sa.key \
        --service-account-signing-key-file sa.key --service-cluster-ip-range 10.0.0.0/24 \
        --disable-admission-plugins ServiceAccount &
    server=$!
    while kill -0 "$owner" 2>/dev/null && kill -0 "$server" 2>/dev/null; do sleep 1; done
    kill "$server" 2>/dev/null && wait "$server" || true
    kill "$store" 2>/dev/null || true
) >log 2>&1 </dev/null &

for _ in {1..600}; do
    if (exec 3<>"/dev/tcp/127.0.0.1/$api") 2>/dev/null; then exit 0; fi
    sleep 0.1
done
tail -20 log >&2
exit 1
