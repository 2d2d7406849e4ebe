#!/usr/bin/env bash
# Deletes the kind cluster; without one it does nothing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=kind-cluster/versions.env
. "$here/versions.env"
kind delete cluster --name "$CLUSTER"
