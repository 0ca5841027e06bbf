#!/usr/bin/env bash
# Builds a real Oxia server from the Go module proxy, or reuses an earlier build.
# The last line printed is the directory that holds it.
#
# The module proxy's newest release is v0.14.0, and as released it is of no use
# for tests: two concurrent writers stop a shard until the server is restarted.
# So four places are changed before the build, as later releases do in their way:
#
#  1. A leader takes the next log offset under one lock and appends under
#     another, so two writers can append in the wrong order, which the log
#     refuses from then on. One more lock is held over both steps.
#  2. The log keeps its lock while it waits for room in the queue of syncs, and
#     the task that empties the queue needs the same lock. It's released before.
#  3. A node that gives up leadership keeps its locks while it waits for sessions
#     that are just expiring, and those need the same locks to find out that it
#     no longer leads: the node hangs for good. A leader that stood still for a
#     while and goes on meets this nearly always. The locks are released before.
#     A heartbeat also waited, with the session's lock, for a session that waits
#     for this lock to expire; now it doesn't, one heartbeat in store is enough.
#  4. A node that comes back may be elected before the coordinator's next look at
#     it, up to a minute later. If it dies by then, nobody is told that a leader
#     died, and there is no other. Every failed look is told now, which means
#     nothing to a shard that has another leader, and looks are two seconds apart.
#
# A first build costs about 8 minutes of CPU.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/common.sh"

version=$oxia_version
module=github.com/oxia-db/oxia
cache=$(tools_cache)
target=$(oxia_directory)

# expect FILE PATTERN COUNT: ends the script when the source isn't the one that
# the changes were made for.
expect() {
  local found
  found=$(grep -c -e "$2" "$1") || true
  [ "$found" = "$3" ] && return
  echo "build-oxia: $1 isn't as expected: $found lines match '$2', not $3" >&2
  exit 1
}

fix_offset_order() {
  local file=$1
  sed -i \
    -e '/^type leaderController struct {$/a\	appendOrder sync.Mutex' \
    -e '/^func (lc \*leaderController) write(ctx context.Context,/a\	lc.appendOrder.Lock()\n\tdefer lc.appendOrder.Unlock()' \
    "$file"
  expect "$file" 'appendOrder' 3
}

fix_lock_while_queueing() {
  local file=$1
  sed -i '/^func (t \*wal) AppendAndSync(/,/^}/ {
    /^\tdefer t\.Unlock()$/d
    s/^\tif err := t\.appendAsync0(entry); err != nil {$/\terr := t.appendAsync0(entry)\n\tt.Unlock()\n\tif err != nil {/
  }' "$file"
  expect "$file" '^	err := t\.appendAsync0(entry)$' 1
  if sed -n '/^func (t \*wal) AppendAndSync(/,/^}/p' "$file" | grep -q defer; then
    echo "build-oxia: $file still holds its lock to the end" >&2
    exit 1
  fi
}

fix_locks_while_sessions_end() {
  local leader=$1 manager=$2 session=$3
  sed -i 's/^\terr = lc\.sessionManager\.Close()$/\tlc.Unlock()\n&\n\tlc.Lock()/' "$leader"
  expect "$leader" '^	lc\.Lock()$' "$(($(grep -c '^	lc\.Lock()$' "$4/server/leader_controller.go") + 2))"
  sed -i '/^func (sm \*sessionManager) Close() error {$/,/^}$/ {
    s/^\tdefer sm\.Unlock()$/\tvar ending []*session/
    s/^\t\ts\.Close()$/\t\tending = append(ending, s)/
    s/^\tsm\.activeSessions\.Unregister()$/\tsm.Unlock()\n\tfor _, s := range ending {\n\t\ts.Close()\n\t}\n&/
  }' "$manager"
  expect "$manager" 'ending' 3
  sed -i 's/^\t\ts\.heartbeatCh <- true$/\t\tselect {\n\t\tcase s.heartbeatCh <- true:\n\t\tdefault:\n\t\t}/' "$session"
  expect "$session" '^		case s\.heartbeatCh <- true:$' 1
}

fix_unnoticed_death() {
  local controller=$1 backoff=$2
  sed -i '/^func (n \*nodeController) healthCheckWithRetries() {$/,/^}$/ {
    /^\t\tif n\.status == Running {$/,/^\t\t}$/ {
      /NodeBecameUnavailable/d
      s/^\t\t}$/&\n\t\tn.nodeAvailabilityListener.NodeBecameUnavailable(n.server)/
    }
  }' "$controller"
  expect "$controller" '^		n\.nodeAvailabilityListener\.NodeBecameUnavailable(n\.server)$' 1
  sed -i 's/backoff\.DefaultMaxInterval/2 * time.Second/' "$backoff"
  expect "$backoff" '2 \* time\.Second' 1
}

if ! all_executable "$target" oxia; then
  mkdir -p "$cache"
  staging=$(mktemp -d "$cache/.oxia-$version.XXXXXX")
  trap '[ ! -d "$staging" ] || { chmod -R u+w "$staging"; rm -rf "$staging"; }' EXIT
  work=$staging/work
  mkdir "$work"
  cp "$here"/oxia/go.mod "$here"/oxia/go.sum "$work/"
  cd "$work"
  export CGO_ENABLED=0 GOTOOLCHAIN=local
  source_dir=$(go mod download -json "$module@$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
  cp -r "$source_dir" source
  chmod -R u+w source
  fix_offset_order source/server/leader_controller.go
  fix_lock_while_queueing source/server/wal/wal_impl.go
  fix_locks_while_sessions_end source/server/leader_controller.go source/server/session_manager.go source/server/session.go "$source_dir"
  fix_unnoticed_death source/coordinator/controllers/node_controller.go source/common/time/backoff.go
  go mod edit -replace "$module=./source"
  echo "building oxia $version" >&2
  go build -trimpath -buildvcs=false -mod=mod -ldflags '-s -w' -o "$staging/oxia" "$module/cmd"
  rm -rf "$work"
  chmod 755 "$staging"
  publish "$staging" "$target"
fi
all_executable "$target" oxia
printf '%s\n' "$target"
