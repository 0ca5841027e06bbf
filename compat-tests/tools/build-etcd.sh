#!/usr/bin/env bash
# Builds the real etcd, etcdctl and etcdutl from the Go module proxy, or reuses
# an earlier build. The last line printed is the directory that holds them.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/common.sh"

version=v3.7.3
cache=$(tools_cache)
target=$cache/etcd-$version

if ! all_executable "$target" etcd etcdctl etcdutl; then
  mkdir -p "$cache"
  staging=$(mktemp -d "$cache/.etcd-$version.XXXXXX")
  trap 'rm -rf "$staging"' EXIT
  cd "$here/etcd"
  export CGO_ENABLED=0 GOTOOLCHAIN=local
  # The server first: it shares most packages with the two others.
  for part in server:etcd etcdctl:etcdctl etcdutl:etcdutl; do
    echo "building ${part#*:} $version" >&2
    go build -trimpath -buildvcs=false -mod=readonly -ldflags '-s -w' \
      -o "$staging/${part#*:}" "go.etcd.io/etcd/${part%%:*}/v3"
  done
  chmod 755 "$staging"
  publish "$staging" "$target"
fi
all_executable "$target" etcd etcdctl etcdutl
printf '%s\n' "$target"
