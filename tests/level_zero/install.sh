#!/bin/bash
# Installs what tests/level_zero/run.sh needs on a Debian 12 (amd64) host: the Level Zero loader, patchelf, libclang.
# Must never remove a package, edit the system's apt configuration or name a mirror of its own.
# Needs root, unless everything is installed already: then it only says so.
set -euo pipefail

say() { echo "install.sh: $*" >&2; }
die() { say "$1"; shift; for line in "$@"; do echo "  $line" >&2; done; exit 1; }

case ${1-} in
  "") ;;
  -h | --help)
    sed -n '2,4s/^# //p' "$0"
    echo "usage: tests/level_zero/install.sh      (no options; running it again is harmless)"
    exit 0 ;;
  *) say "unknown argument '$1' (it takes none; -h explains)"; exit 2 ;;
esac

# Files that the scripts use, and their packages. libclang with its headers is for bindgen (regen.sh).
libraries=/usr/lib/x86_64-linux-gnu
needs="$libraries/libze_loader.so.1:libze1 /usr/bin/patchelf:patchelf /usr/lib/llvm-14/lib/libclang.so:libclang-14-dev"

missing_packages() {
  local pair
  for pair in $needs; do
    [ -e "${pair%%:*}" ] || echo "${pair#*:}"
  done
}

[ -n "$(missing_packages)" ] || { say "all there already"; exit 0; }

. /etc/os-release
[ "${VERSION_CODENAME-} $(dpkg --print-architecture 2> /dev/null)" = "bookworm amd64" ] ||
  die "this host is not Debian 12 on amd64" "install by hand the equivalents of:" "$(missing_packages | xargs)"
[ "$(id -u)" = 0 ] ||
  die "root is needed to install: $(missing_packages | xargs)" "run: sudo tests/level_zero/install.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One installation at a time. Another one may have finished while this one waited.
exec 9> /run/lock/fdbroker-level-zero-install.lock
flock 9
packages=$(missing_packages | xargs)
[ -n "$packages" ] || { say "all there already"; exit 0; }

# Its own package lists, so that it neither needs nor changes the system's.
mkdir -p "$work/lists/partial"
apt=(-qq -o "Dir::State::Lists=$work/lists" -o APT::Sandbox::User=root -o Acquire::Languages=none
  -o DPkg::Lock::Timeout=300)
say "reading the package lists"
apt-get "${apt[@]}" update < /dev/null >&2 9>&- || say "apt-get update complained; going on with what it got"

say "installing $packages"
DEBIAN_FRONTEND=noninteractive apt-get "${apt[@]}" install -y --no-install-recommends --no-remove \
  -o Dpkg::Use-Pty=0 $packages < /dev/null > "$work/log" 2>&1 9>&- || {
  tail -30 "$work/log" >&2
  die "apt-get could not install: $packages" "its own message is above; once that is settled, run this again"
}

left=$(missing_packages | xargs)
[ -z "$left" ] || die "still missing after the installation: $left"
say "done"
