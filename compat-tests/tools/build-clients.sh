#!/usr/bin/env bash
# Fetches and builds clients of etcd in other languages, or reuses what was built:
#   build-clients.sh CLIENT     with CLIENT one of rust, etcd3, aetcd, etcd3gw, tooz, patroni, node, java
# The versions are pinned in the files below compat-tests/clients. The last line printed is the
# directory that holds the result.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/common.sh"
clients=$(dirname "$here")/clients
client=${1:?which client}

need() {
  command -v "$1" >/dev/null || { echo "build-clients.sh: $1 is missing: $2" >&2; exit 2; }
}

# python_environment NAME DIR: the packages of one client, and the source of its release with its tests.
python_environment() {
  packages "$1" "$2"
  "$2/venv/bin/python" -m pip download -q --disable-pip-version-check --no-deps --no-binary :all: \
    --require-hashes -d "$2" -r "$clients/python/$1-sdist.txt" >&2
  tar -xzf "$2/$1"-*.tar.gz -C "$2"
  mv "$2/$1"-*/ "$2/source"
  # Only its tests: the client itself is the installed one.
  rm -rf "$2/source/$1" "$2/$1"-*.tar.gz
}

# packages NAME DIR: nothing but the packages of one client.
packages() {
  need python3 "install Python 3.11 or newer with its venv module (Debian: python3-venv)"
  python3 -m venv "$2/venv"
  "$2/venv/bin/python" -m pip install -q --disable-pip-version-check -r "$clients/python/$1.txt" >&2
}

# Its tests are installed with it, and tooz, whose driver for etcd is made on it, brings its own.
build_etcd3gw() { packages etcd3gw "$1"; }
build_patroni() { packages patroni "$1"; }

build_etcd3() { python_environment etcd3 "$1"; }
build_aetcd() { python_environment aetcd "$1"; }

build_node() {
  need npm "install Node.js 20 or newer with npm"
  cp "$clients/node/package.json" "$clients/node/package-lock.json" "$1"
  (cd "$1" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
}

build_java() {
  need javac "install a JDK, 17 or newer"
  need mvn "install Maven"
  mvn -B -q -f "$clients/java/pom.xml" "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies" \
    -DincludeScope=runtime -DoutputDirectory="$1/dependency" >&2
  javac --release 17 -Xlint:all,-processing,-try -Werror -cp "$1/dependency/*" -d "$1/classes" "$clients/java/Smoke.java"
}

# The client's release holds its tests. They use a fixed address, which is made one of the environment.
build_rust() {
  local manifest protoc
  manifest=$(cargo metadata --locked --format-version 1 --manifest-path "$clients/rust/Cargo.toml" |
    python3 -c 'import json, sys
print(next(p["manifest_path"] for p in json.load(sys.stdin)["packages"] if p["name"] == "etcd-client"))')
  cp -r "$(dirname "$manifest")" "$1/source"
  chmod -R u+w "$1/source"
  sed -i -e 's/DEFAULT_TEST_ENDPOINT}/default_test_endpoint}/' \
    -e '/^pub const DEFAULT_TEST_ENDPOINT/d' \
    -e 's/\bDEFAULT_TEST_ENDPOINT\b/default_test_endpoint()/' "$1/source/tests/client.rs" "$1/source/tests/testing.rs"
  cat >>"$1/source/tests/testing.rs" <<'RUST'

#[allow(dead_code)]
pub fn default_test_endpoint() -> &'static str {
    static ENDPOINT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    ENDPOINT.get_or_init(|| std::env::var("TEST_ENDPOINT").expect("TEST_ENDPOINT"))
}
RUST
  # protoc from the Python package that brings one: no compiler to install for it.
  protoc=$1/protoc
  printf '#!/bin/sh\nexec "%s/venv/bin/python" -m grpc_tools.protoc "$@"\n' "$("$0" aetcd | tail -n 1)" >"$protoc"
  chmod +x "$protoc"
  (cd "$1/source" && PROTOC=$protoc CARGO_TARGET_DIR=$1/target CARGO_PROFILE_TEST_DEBUG=0 CARGO_PROFILE_DEV_DEBUG=0 \
    cargo test --locked --no-run --tests --message-format=json) |
    python3 -c 'import json, shutil, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        shutil.copy(message["executable"], sys.argv[1] + "/" + message["target"]["name"])' "$1"
  rm -rf "$1/target"
}

if [[ $client == tooz ]]; then client=etcd3gw; fi
case $client in
  rust) inputs=(rust/Cargo.lock) ;;
  etcd3 | aetcd) inputs=("python/$client.txt" "python/$client-sdist.txt") ;;
  etcd3gw | patroni) inputs=("python/$client.txt") ;;
  node) inputs=(node/package-lock.json) ;;
  java) inputs=(java/pom.xml java/Smoke.java) ;;
  *) echo "build-clients.sh: unknown client $client" >&2; exit 2 ;;
esac
# What was built from other pins stays beside it.
fingerprint=$(cd "$clients" && cat "${inputs[@]}" | cksum | cut -d' ' -f1)
cache=$(tools_cache)
target=$cache/client-$client-$fingerprint
if [[ ! -d $target ]]; then
  mkdir -p "$cache"
  staging=$(mktemp -d "$cache/.client-$client.XXXXXX")
  trap 'rm -rf "$staging"' EXIT
  echo "building the client $client" >&2
  "build_$client" "$staging"
  chmod 755 "$staging"
  publish "$staging" "$target"
fi
printf '%s\n' "$target"
