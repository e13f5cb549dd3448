#!/bin/bash
# Unpacks packages of a Debian suite into a folder, through apt. Must never install a package, edit the system's apt
# configuration or name a mirror of its own.
set -euo pipefail
die() { echo "apt.sh: $1" >&2; shift; for line in "$@"; do echo "  $line" >&2; done; exit 1; }
[ $# -ge 3 ] || { echo "usage: libclient/level-zero-sys/apt.sh SUITE DIR PACKAGE[=VERSION]...     amd64 only" >&2; exit 2; }
suite=$1 target=$(realpath -m "$2"); shift 2

for tool in apt-get dpkg-deb; do
  command -v "$tool" > /dev/null || die "this host has no $tool" "unpack these of Debian $suite (amd64) by hand: $*"
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
mkdir -p "$work"/{lists,cache/archives}/partial "$target"
printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$mirror" "$suite" "$key" \
  > "$work/debian.sources"
apt=(-qq -o "Dir::Etc::SourceList=$work/debian.sources" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$work/lists"
  -o "Dir::Cache=$work/cache" -o Dir::State::Status=/dev/null -o APT::Sandbox::User=root -o Acquire::Languages=none)
apt-get "${apt[@]}" update < /dev/null >&2 || die "apt-get update failed for $suite on $mirror" \
  "its own message is above"
(cd "$work" && apt-get "${apt[@]}" download "$@" < /dev/null >&2) || die "$mirror lacks one of: $*"
for package in "$work"/*.deb; do dpkg-deb -x "$package" "$target"; done
(cd "$work" && printf '%s\n' *.deb) > "$target/.packages"
