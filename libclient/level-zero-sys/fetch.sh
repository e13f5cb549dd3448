#!/bin/bash
# Unpacks Debian 13's Level Zero loader (libze1) and headers (libze-dev) into a directory of their own, through apt,
# with the C and C++ libraries that this loader needs: its libstdc++ is newer than Debian 12's.
# Must never install a package, edit the system's apt configuration or name a mirror of its own.
set -euo pipefail

# Spec 1.12.
version=1.20.6-1 suite=trixie
packages=(libze1 libze-dev)
runtime=(libc6 libstdc++6 libgcc-s1)

die() { echo "fetch.sh: $1" >&2; shift; for line in "$@"; do echo "  $line" >&2; done; exit 1; }

case ${1-} in
  -h | --help | '')
    sed -n '2,4s/^# //p' "$0"
    echo "usage: libclient/level-zero-sys/fetch.sh DIR      afterwards DIR/usr/include and DIR/usr/lib are there"
    [ -n "${1-}" ] || exit 2
    exit 0 ;;
esac
[ $# = 1 ] || die "it takes one directory (-h explains)"
target=$(realpath -m "$1")
stamp=$target/.version
[ "$(cat "$stamp" 2> /dev/null)" != "$version" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$(dirname "$(readlink -f "$0")")/apt.sh" "$suite" "$work/unpacked" "${packages[@]/%/=$version}" "${runtime[@]}" ||
  die "another version of ${packages[*]} needs new bindings: change it here, run regen.sh, read the difference"
[ -e "$work/unpacked/usr/include/level_zero/ze_ddi.h" ] || die "the packages hold no level_zero/ze_ddi.h"

# As a whole or not at all, also when two of these run at once: the second one keeps the folder of the first.
echo "$version" > "$work/unpacked/.version"
mkdir -p "$(dirname "$target")"
staged=$(mktemp -d "$target.XXXXXX")
cp -a "$work/unpacked/." "$staged/"
rm -rf "$target"
mv -T "$staged" "$target" 2> /dev/null || { rm -rf "$staged"; [ "$(cat "$stamp")" = "$version" ]; }
