#!/usr/bin/env bash
# pathproof on a laptop: a kind cluster, the image, the chart, a fault and its repair.
# The agents enforce there, so that a broken node answers 503; the chart's default is audit.
# docs/quickstart-kind.md explains each step. Usage: deploy/examples/kind.sh [up|break|mend|ask|down]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

CLUSTER=${CLUSTER:-pathproof}
NODE=$CLUSTER-worker

need() {
    command -v "$1" >/dev/null && return
    echo "error: $1 is missing: $2" >&2
    exit 1
}

up() {
    need docker "https://docs.docker.com/engine/install/"
    need kind "https://kind.sigs.k8s.io/docs/user/quick-start/#installation"
    need kubectl "https://kubernetes.io/docs/tasks/tools/"
    need helm "https://helm.sh/docs/intro/install/"
    local machine archive
    case $(uname -m) in
        x86_64) machine=amd64 ;;
        aarch64 | arm64) machine=arm64 ;;
        *) echo "error: there is no image for $(uname -m)" >&2 && exit 1 ;;
    esac
    cargo xtask image --arch "$machine"
    archive=$(ls -t target/image/pathproof-*-linux-"$machine".tar | head -n 1)
    kind create cluster --name "$CLUSTER" --config - <<'KIND'
kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
nodes:
  - role: control-plane
  - role: worker
  - role: worker
KIND
    kind load image-archive "$archive" --name "$CLUSTER"
    kubectl create namespace pathproof
    kubectl label namespace pathproof pod-security.kubernetes.io/enforce=privileged
    helm install pathproof deploy/chart --namespace pathproof --values deploy/chart/ci/kind-values.yaml
    kubectl -n pathproof rollout status daemonset/pathproof-agent --timeout 3m
    ask
}

# A load balancer's view: the node's address on kind's network.
ask() {
    local address
    address=$(docker inspect --format '{{.NetworkSettings.Networks.kind.IPAddress}}' "$NODE")
    docker exec "$CLUSTER-control-plane" curl --silent --include "http://$address:10256/healthz" || true
    echo
    kubectl get node "$NODE" --output \
        jsonpath='{range .status.conditions[?(@.type=="ServiceDatapathReady")]}{.status} {.reason}: {.message}{"\n"}{end}'
}

# kube-proxy's Service rules go, and kube-proxy stays: its own /healthz does not change.
break_it() {
    docker exec "$NODE" sh -c 'iptables -t nat -F KUBE-SERVICES'
    sleep 3
    ask
}

# A restart of kube-proxy writes all rules again.
mend() {
    kubectl -n kube-system delete pod --field-selector "spec.nodeName=$NODE" -l k8s-app=kube-proxy
    sleep 15
    ask
}

down() {
    kind delete cluster --name "$CLUSTER"
}

case ${1:-up} in
    up) up ;;
    break) break_it ;;
    mend) mend ;;
    ask) ask ;;
    down) down ;;
    *) echo "usage: $0 [up|break|mend|ask|down]" >&2 && exit 64 ;;
esac
