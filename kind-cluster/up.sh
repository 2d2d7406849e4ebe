#!/usr/bin/env bash
# A kind cluster with KServe in Standard mode, and our images in it. Safe to run again: what is there is left or upgraded.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=kind-cluster/versions.env
. "$here/versions.env"

say() { printf 'kind-up: %s\n' "$*" >&2; }

for tool in docker kind kubectl helm; do
  command -v "$tool" >/dev/null || { say "needs $tool on PATH"; exit 2; }
done
docker info >/dev/null 2>&1 || { say 'docker does not answer'; exit 2; }
for image in "$SERVING_IMAGE" "$JOBS_IMAGE"; do
  docker image inspect "$image" >/dev/null 2>&1 || { say "no image $image: make images"; exit 2; }
done

if ! kind get clusters 2>/dev/null | grep -qx "$CLUSTER"; then
  say "creating the cluster $CLUSTER"
  kind create cluster --name "$CLUSTER" --image "$NODE_IMAGE" --config "$here/kind.yaml" --wait 2m
fi
kubectl() { command kubectl --context "kind-$CLUSTER" "$@"; }
install() { helm upgrade --install --kube-context "kind-$CLUSTER" --create-namespace --wait --timeout 5m "$@"; }

say "cert-manager $CERT_MANAGER"
install cert-manager oci://quay.io/jetstack/charts/cert-manager --version "$CERT_MANAGER" --namespace cert-manager --set crds.enabled=true

say "metrics-server $METRICS_SERVER"
kubectl apply -f "https://github.com/kubernetes-sigs/metrics-server/releases/download/$METRICS_SERVER/components.yaml"
# kind's kubelets have certificates that nobody signed.
if ! kubectl -n kube-system get deployment metrics-server -o jsonpath='{.spec.template.spec.containers[0].args}' | grep -q kubelet-insecure-tls; then
  kubectl -n kube-system patch deployment metrics-server --type=json \
    -p '[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--kubelet-insecure-tls"}]'
fi

say "KServe $KSERVE"
install kserve-crd oci://ghcr.io/kserve/charts/kserve-crd --version "$KSERVE" --namespace kserve
install kserve oci://ghcr.io/kserve/charts/kserve-resources --version "$KSERVE" --namespace kserve --values "$here/kserve-values.yaml"

say 'loading images'
kind load docker-image --name "$CLUSTER" "$SERVING_IMAGE" "$JOBS_IMAGE"
say "up: kubectl config use-context kind-$CLUSTER"
