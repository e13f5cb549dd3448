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

for tool in apt-get dpkg-deb; do
  command -v "$tool" > /dev/null || die "this host has no $tool" \
    "unpack libze1 and libze-dev $version of Debian 13 (amd64) into $target by hand," "then: echo $version > $stamp"
done
[ "$(dpkg --print-architecture)" = amd64 ] || die "the packages are taken for amd64 only"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Own lists, cache and state for apt, so that only this call knows the other suite. The mirror and the key are the
# system's.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' 'Label: Debian' |
  sed -n 1p)
[ -n "$mirror" ] || die "apt knows no mirror of Debian" "check /etc/apt/sources.list*, then: apt-get update"
key=/usr/share/keyrings/debian-archive-keyring.gpg
[ -s "$key" ] || die "no archive key at $key" "install the package debian-archive-keyring"
mkdir -p "$work"/{lists,cache/archives}/partial "$work/unpacked"
printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$mirror" "$suite" "$key" \
  > "$work/debian.sources"
apt=(-qq -o "Dir::Etc::SourceList=$work/debian.sources" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$work/lists"
  -o "Dir::Cache=$work/cache" -o Dir::State::Status=/dev/null -o APT::Sandbox::User=root -o Acquire::Languages=none)
apt-get "${apt[@]}" update < /dev/null >&2 || die "apt-get update failed for $suite on $mirror" \
  "its own message is above"
(cd "$work" && apt-get "${apt[@]}" download "${packages[@]/%/=$version}" "${runtime[@]}" < /dev/null >&2) ||
  die "$mirror lacks one of: ${runtime[*]}, or of version $version: ${packages[*]}" \
    "another version needs new bindings: change it here, run regen.sh, read the difference"
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
[ -e "$work/unpacked/usr/include/level_zero/ze_ddi.h" ] || die "the packages hold no level_zero/ze_ddi.h"

# As a whole or not at all, also when two of these run at once: the second one keeps the folder of the first.
echo "$version" > "$work/unpacked/.version"
mkdir -p "$(dirname "$target")"
staged=$(mktemp -d "$target.XXXXXX")
cp -a "$work/unpacked/." "$staged/"
rm -rf "$target"
mv -T "$staged" "$target" 2> /dev/null || { rm -rf "$staged"; [ "$(cat "$stamp")" = "$version" ]; }
