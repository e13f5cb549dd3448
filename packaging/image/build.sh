#!/bin/bash
# Makes the file tree of the broker's image: daemon, command, the libraries that they need, and a busybox for its scripts. Needs no
# container engine and no root. Must never take a program that was not built from this checkout.
set -euo pipefail
umask 022

die() { echo "image/build.sh: $1" >&2; shift; for line in "$@"; do echo "  $line" >&2; done; exit 1; }
usage() {
  cat << 'HELP'
usage: packaging/image/build.sh [--from DIR] [TREE]

Builds the workspace in the profile `release` (--from DIR: takes what was built there before, from this checkout as it is) and makes the
tree of the image in TREE (default: packaging/image/root, where the Containerfile has it). Needs a static busybox (package
busybox-static). Exit status: 0 ok, 1 error, 2 usage.
HELP
}
# A fixed uid, which files on the node keep when the image is replaced. No distribution gives it to anybody.
uid=61100

from='' tree=''
while [ $# -gt 0 ]; do
  case $1 in
    --from) [ $# -ge 2 ] || { usage >&2; exit 2; }; from=$(realpath -m -- "$2"); shift 2 ;;
    -h | --help) usage; exit 0 ;;
    -*) usage >&2; exit 2 ;;
    *) tree=$(realpath -m -- "$1"); shift ;;
  esac
done
here=$(dirname "$(readlink -f "$0")")
tree=${tree:-$here/root}
busybox=$(command -v busybox) || die "busybox is not installed" "run: sudo apt-get install busybox-static"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$here/../../systemd/install.sh" --prefix /usr --destdir "$work/installed" --without-libraries ${from:+--from "$from"} > "$work/log" ||
  die "systemd/install.sh failed; its message is above"
rm -rf "$work/root"
mkdir -p "$work/root"/{dev,etc/fdbroker,proc,run/fdbroker,run/fdbroker-admin,tmp,usr/bin,usr/lib,usr/lib64}
for name in bin sbin; do ln -s usr/bin "$work/root/$name"; done
ln -s usr/lib "$work/root/lib"; ln -s usr/lib64 "$work/root/lib64"
for program in fdbroker fdbrokerd; do
  strip -o "$work/root/usr/bin/$program" "$work/installed/usr/bin/$program"
done
install -m 0755 "$here/serve" "$work/root/usr/bin/serve"
install -m 0755 "$busybox" "$work/root/usr/bin/busybox"
for applet in sh install sleep; do ln -s busybox "$work/root/usr/bin/$applet"; done
# With the loader, each where the program looks for it.
{ ldd "$work/root/usr/bin/fdbrokerd"; ldd "$work/root/usr/bin/fdbroker"; ldd "$busybox" || true; } 2> /dev/null | grep -o '/[^ ]*' |
  grep -v ':$' | sort -u | while IFS= read -r library; do
  install -D -m 0755 "$library" "$work/root$library"
done
printf 'root:x:0:0::/:/bin/sh\nfdbroker:x:%s:%s::/:/bin/false\n' $uid $uid > "$work/root/etc/passwd"
printf 'root:x:0:\nfdbroker:x:%s:\n' $uid > "$work/root/etc/group"
cp "$work/installed/etc/fdbroker/fdbrokerd.toml" "$work/root/etc/fdbroker/"
mkdir -p "${tree%/*}"
rm -rf "$tree"
mv -T "$work/root" "$tree"
echo "image/build.sh: $tree: $(du -sh "$tree" | cut -f1)"
