#!/usr/bin/env bash
# Finds a Chromium, or fetches Debian's with the libraries and fonts that this machine has not, and prints the
# program's path as the last line. Nothing is installed: the packages are unpacked into the cache, which
# needs no rights, and are checked by apt as always. CHROMIUM_BIN names another one.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/common.sh"

if [[ -n ${CHROMIUM_BIN:-} ]]; then
  printf '%s\n' "$CHROMIUM_BIN"
  exit 0
fi
if [[ -z ${CHROMIUM_FETCH:-} ]]; then # set: as if there were none here
  for name in chromium chromium-browser google-chrome; do
    if command -v "$name"; then exit 0; fi
  done
fi
target=$(tools_cache)/chromium
if all_executable "$target" chromium; then
  printf '%s\n' "$target/chromium"
  exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
  echo "build-chromium.sh: there is no Chromium: install one, or set CHROMIUM_BIN" >&2
  exit 2
fi

mkdir -p "$(tools_cache)"
staging=$(mktemp -d "$(tools_cache)/.chromium.XXXXXX")
trap 'rm -rf "$staging"' EXIT
# apt's own lists and cache stay as they are.
mkdir -p "$staging/apt/lists/partial" "$staging/apt/cache/archives/partial" "$staging/root"
apt() {
  apt-get -qq -o "Dir::State::lists=$staging/apt/lists" -o "Dir::Cache=$staging/apt/cache" \
    -o "Dir::State::status=${CHROMIUM_DPKG_STATUS:-/var/lib/dpkg/status}" \
    -o Debug::NoLocking=1 -o "APT::Sandbox::User=$(id -un)" "$@" >&2
}
echo "fetching Chromium" >&2
apt update
apt install --download-only --yes --no-install-recommends chromium fonts-dejavu-core fonts-dejavu-extra
for package in "$staging"/apt/cache/archives/*.deb; do
  # The machine's loader goes with the machine's C library.
  case ${package##*/} in libc6_* | libc-bin_*) continue ;; esac
  dpkg-deb --extract "$package" "$staging/root"
done
rm -rf "$staging/apt"

# The program with its libraries and fonts beside those of the machine.
cat >"$staging/fonts.conf" <<XML
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir>$target/root/usr/share/fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
XML
cat >"$staging/chromium" <<SH
#!/bin/sh
root=$target/root
libraries=\$(find "\$root/usr/lib" "\$root/lib" -name '*.so*' -printf '%h\n' 2>/dev/null | sort -u | paste -sd:)
export LD_LIBRARY_PATH="\$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
export FONTCONFIG_FILE=$target/fonts.conf
exec "\$root/usr/lib/chromium/chromium" "\$@"
SH
chmod 755 "$staging" "$staging/chromium"
LD_LIBRARY_PATH=$(find "$staging/root/usr/lib" "$staging/root/lib" -name '*.so*' -printf '%h\n' 2>/dev/null | sort -u | paste -sd:) \
  "$staging/root/usr/lib/chromium/chromium" --version >&2
publish "$staging" "$target"
printf '%s\n' "$target/chromium"
