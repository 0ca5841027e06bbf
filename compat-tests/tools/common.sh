# Shared by the build-*.sh scripts beside this file; sourced, not run.
#
# Every script puts what it builds into a directory of its own below one cache,
# outside the repository, so that a fresh clone or another working copy reuses it.

tools_cache() {
  printf '%s\n' "${LEASEWAY_TOOLS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/leaseway}"
}

# oxia_directory: where build-oxia.sh puts the server. The number after "fixed" rises with the
# changes that are made to the source, so that an older build isn't reused.
oxia_version=v0.14.0
oxia_directory() {
  printf '%s\n' "$(tools_cache)/oxia-$oxia_version-fixed3"
}

# all_executable DIR FILE...: true when DIR holds every FILE.
all_executable() {
  local dir=$1 file
  shift
  for file in "$@"; do
    [ -x "$dir/$file" ] || return 1
  done
}

# publish STAGING TARGET: makes a finished build visible under its final name in
# one step, so that nobody ever runs a half-written program. If somebody else
# published the same build first, theirs stays.
publish() {
  local staging=$1 target=$2
  if ! mv -T "$staging" "$target" 2>/dev/null; then
    [ -d "$target" ] || return 1
    rm -rf "$staging"
  fi
}
