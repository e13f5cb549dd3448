#!/bin/bash
# Unpacks Intel's Level Zero driver, the loader and the libraries that they need into a folder: Debian's packages. Must never
# install a package, nor take a given one whose sum is not known.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
die() { echo "intel/fetch.sh: $*" >&2; exit 1; }

case ${1-} in
  -h | --help | '')
    cat << 'HELP'
usage: tests/level_zero/intel/fetch.sh DIR [PACKAGES]      afterwards DIR/usr/lib is there, and DIR/.packages names the packages

PACKAGES is a folder with the packages that packages.sha256 names. Without it they are what Debian's unstable suite has today, through apt.
HELP
    [ -n "${1-}" ] || exit 2
    exit 0 ;;
esac
target=$(realpath -m "$1") given=${2-}
wanted=$(sha256sum "$here/packages.sha256" | cut -c 1-64)
[ -n "$given" ] || wanted=unstable
[ "$(cat "$target/.version" 2> /dev/null)" != "$wanted" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/unpacked"
if [ -n "$given" ]; then
  (cd "$given" && sha256sum --quiet --check "$here/packages.sha256") || die "$given has other packages than packages.sha256 names"
  while read -r _ package; do dpkg-deb -x "$given/$package" "$work/unpacked"; done < "$here/packages.sha256"
  cut -c 67- "$here/packages.sha256" > "$work/unpacked/.packages"
else
  "$here/../../../libclient/level-zero-sys/apt.sh" sid "$work/unpacked" libze-intel-gpu1 libze1 libigdgmm12 libigc2 libigdfcl2 \
    libdrm2 libc6 libstdc++6 libgcc-s1 zlib1g || die "Debian's unstable suite is not to be had (see above)"
fi
[ -e "$work/unpacked/usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1" ] || die "the packages have no driver"
echo "$wanted" > "$work/unpacked/.version"
mkdir -p "$(dirname "$target")"
rm -rf "$target"
cp -a "$work/unpacked" "$target"
