#!/bin/bash
# Installs what tests/vm/run.sh needs on a Debian 12 (amd64) host: QEMU, busybox, cpio, xz, zstd, mmdebstrap.
# It never removes a package, never edits the system's apt configuration, and names no mirror of its own.
# Needs root, unless everything is already there: then it only says so.
set -euo pipefail

say() { echo "install.sh: $*" >&2; }
die() { say "$1"; shift; for line in "$@"; do echo "  $line" >&2; done; exit 1; }

case ${1-} in
  "") ;;
  -h | --help)
    sed -n '2,4s/^# //p' "$0"
    echo "usage: tests/vm/install.sh      (no options; running it again is harmless)"
    exit 0 ;;
  *) say "unknown argument '$1' (it takes none; -h explains)"; exit 2 ;;
esac

# Command the scripts call, and the package that brings it.
needs="qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio xz:xz-utils zstd:zstd mmdebstrap:mmdebstrap"

missing_packages() {
  local pair
  for pair in $needs; do
    command -v "${pair%%:*}" > /dev/null || echo "${pair#*:}"
  done
}

[ -n "$(missing_packages)" ] || { say "all there already"; exit 0; }

. /etc/os-release
[ "${VERSION_CODENAME-} $(dpkg --print-architecture 2> /dev/null)" = "bookworm amd64" ] ||
  die "this host is not Debian 12 on amd64" "install by hand the equivalents of:" "$(missing_packages | xargs)"
[ "$(id -u)" = 0 ] ||
  die "root is needed to install: $(missing_packages | xargs)" "run: sudo tests/vm/install.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One installation at a time. Somebody else may have finished it while this one waited.
exec 9> /run/lock/fdbroker-vm-install.lock
flock 9
packages=$(missing_packages | xargs)
[ -n "$packages" ] || { say "all there already"; exit 0; }

# apt works on its own package lists and on a copy of the sources, so that the backports suite can be added for
# this one installation only. Backports, because a host that has qemu-utils from there cannot take the older
# emulator of the main suite beside it.
mkdir -p "$work/lists/partial" "$work/parts"
find /etc/apt/sources.list.d -maxdepth 1 -type f \( -name '*.list' -o -name '*.sources' \) -exec cp {} "$work/parts/" \;
apt=(-qq -o "Dir::State::Lists=$work/lists" -o "Dir::Etc::SourceParts=$work/parts" -o APT::Sandbox::User=root
  -o Acquire::Languages=none -o DPkg::Lock::Timeout=300)
targets() { apt-get "${apt[@]}" indextargets --format '$(REPO_URI)' "Codename: $1" 'Component: main' | sed -n 1p; }

say "reading the package lists"
apt-get "${apt[@]}" update < /dev/null >&2 9>&- || say "apt-get update complained; going on with what it got"
if [ -z "$(targets bookworm-backports)" ]; then
  mirror=$(targets bookworm)
  [ -n "$mirror" ] || die "apt knows no mirror that carries bookworm" "check /etc/apt/sources.list*, then: apt-get update"
  {
    printf 'Types: deb\nURIs: %s\nSuites: bookworm-backports\nComponents: main\n' "$mirror"
    key=/usr/share/keyrings/debian-archive-keyring.gpg
    if [ -s "$key" ]; then echo "Signed-By: $key"; fi
  } > "$work/parts/fdbroker-vm-backports.sources"
  apt-get "${apt[@]}" update < /dev/null >&2 9>&- || true
  [ -n "$(targets bookworm-backports)" ] || die "the mirror $mirror has no bookworm-backports" \
    "add a mirror that has it to /etc/apt/sources.list.d, then run this again"
fi

say "installing $packages"
DEBIAN_FRONTEND=noninteractive apt-get "${apt[@]}" install -y --no-install-recommends --no-remove \
  -o Dpkg::Use-Pty=0 -t bookworm-backports $packages < /dev/null > "$work/log" 2>&1 9>&- || {
  tail -30 "$work/log" >&2
  die "apt-get could not install: $packages" "its own message is above; once that is settled, run this again"
}

left=$(missing_packages | xargs)
[ -z "$left" ] || die "still missing after the installation: $left" "is PATH complete? it is: $PATH"
say "done: $(qemu-system-x86_64 --version | sed -n 1p)"
