#!/usr/bin/env bash
# Builds the real kube-apiserver and kubectl from the Go module proxy, or reuses
# an earlier build. A first build costs 10 to 12 minutes of CPU and 2.5 GB of
# memory; set GOFLAGS=-p=1 to keep it small beside other work. The last line
# printed is the directory that holds the programs.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/common.sh"

version=v1.37.2
cache=$(tools_cache)
target=$cache/kubernetes-$version

if ! all_executable "$target" kube-apiserver kubectl; then
  mkdir -p "$cache"
  staging=$(mktemp -d "$cache/.kubernetes-$version.XXXXXX")
  trap 'rm -rf "$staging"' EXIT
  cd "$here/kubernetes"

  # Kubernetes learns its own version from the linker, and refuses to start
  # without one that it can parse.
  number=${version#v}
  major=${number%%.*}
  minor=${number#*.}
  minor=${minor%%.*}
  link_flags='-s -w'
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    link_flags+=" -X $package.gitVersion=$version -X $package.gitTreeState=clean"
    link_flags+=" -X $package.gitMajor=$major -X $package.gitMinor=$minor"
  done

  # grpcnotrace lets the linker drop unused methods, and no debug information is
  # generated at all: both save minutes here.
  export CGO_ENABLED=0 GOTOOLCHAIN=local GOGC=${GOGC:-400}
  for program in kube-apiserver kubectl; do
    echo "building $program $version" >&2
    go build -trimpath -buildvcs=false -mod=readonly -tags grpcnotrace \
      -gcflags=all=-dwarf=false -ldflags "$link_flags" \
      -o "$staging/$program" "k8s.io/kubernetes/cmd/$program"
  done
  chmod 755 "$staging"
  publish "$staging" "$target"
fi
all_executable "$target" kube-apiserver kubectl
printf '%s\n' "$target"
