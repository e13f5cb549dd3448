#!/bin/bash
# Builds fdbroker's packages for Debian and for rpm from one list of files each (packaging/packages). Must never put into a package
# what was not built from this checkout (systemd/install.sh sees to it), nor leave a file that install.sh places out of all packages.
set -euo pipefail
umask 022

die() { echo "build.sh: $1" >&2; shift; for line in "$@"; do echo "  $line" >&2; done; exit 1; }

help() {
  cat << 'HELP'
usage: packaging/build.sh [deb|rpm]... [--output DIR] [--from DIR] [--release N] [--systemd VERSION]

Builds the workspace in the profile `release`, and of it the packages fdbroker (service, command, manual pages), libfdbroker0,
libfdbroker-dev (libfdbroker-devel), fdbroker-level-zero and fdbroker-cuda, stripped, with the debug information in packages of its
own. Without deb or rpm it builds both. Needs debhelper for deb, and rpm with debugedit and elfutils for rpm.

  --output DIR        where the packages go (default: packages in the directory of cargo's target)
  --from DIR          package what was built before in DIR, from this checkout as it is, instead of building
  --release N         the packages' own number behind the version (default 1)
  --systemd VERSION   package for this version of systemd (default: this machine's)

DEBFULLNAME and DEBEMAIL name the maintainer, SOURCE_DATE_EPOCH the date. Version and licence are those of Cargo.toml.
Exit status: 0 ok, 1 error, 2 usage.
HELP
}

kinds=() output='' from='' release=1 systemd=()
while [ $# -gt 0 ]; do
  case $1 in
    deb | rpm) kinds+=("$1"); shift; continue ;;
    -h | --help) help; exit 0 ;;
    --output | --from | --release | --systemd) ;;
    *) echo "build.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
  esac
  [ $# -ge 2 ] || { echo "build.sh: $1 needs a value (--help explains)" >&2; exit 2; }
  case $1 in
    --output) output=$(realpath -m -- "$2") ;;
    --from) from=$(realpath -m -- "$2") ;;
    --release) release=$2 ;;
    --systemd) systemd=(--systemd "$2") ;;
  esac
  shift 2
done
[ ${#kinds[@]} -gt 0 ] || kinds=(deb rpm)

cd "$(dirname "$(readlink -f "$0")")/.."
root=$PWD
[[ $root$from =~ ^[A-Za-z0-9/._+-]*$ ]] || die "rpmbuild and make take no spaces in paths: $root $from"
if [ -z "$from" ]; then
  cargo build --release --workspace --locked --quiet || die "the build failed; cargo's message is above"
  from=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release
fi
output=${output:-${from%/*}/packages}
mkdir -p "$output"
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version *= *"\(.*\)"/\1/p' Cargo.toml)
maintainer="${DEBFULLNAME:-the fdbroker authors} <${DEBEMAIL:-fdbroker@localhost}>"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || date +%s)}
export SOURCE_DATE_EPOCH
install_sh="$root/systemd/install.sh --prefix /usr --from $from --keep-debug ${systemd[*]-}"
description="fdbroker lets the processes of one node share GPU memory without running out
of file descriptors: a service holds one descriptor for each allocation, and
handles of 64 bytes name it by value. /usr/share/doc/fdbroker has more."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

lists=("$root"/packaging/packages/*)
# field LIST NAME: this field of the list's header.
field() { sed -n "s/^# $2: //p" "$1"; }
# paths LIST LIBDIR: its files and directories.
paths() { sed -n "s|@LIBDIR@|$2|; /^\//p" "$1"; }

build_deb() {
  local tree=$work/deb debian=$work/deb/debian list name units=/usr/lib multiarch
  command -v dh > /dev/null || die "debhelper is not installed" "run: sudo apt-get install debhelper"
  multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
  # debhelper before 13.11.6 looks for units in /lib alone, and so do the packages of Debian 12.
  grep -q usr/lib/systemd "$(command -v dh_installsystemd)" || units=/lib
  mkdir -p "$debian"
  install -m 0755 packaging/deb/rules "$debian/"
  install -m 0644 packaging/deb/{fdbroker.*,copyright} "$debian/"
  sed "s|@MAINTAINER@|$maintainer|" packaging/deb/control > "$debian/control"
  sed -e '/@LICENSE-MIT@/{' -e 'r /dev/stdin' -e 'd' -e '}' packaging/deb/copyright > "$debian/copyright" \
    < <(sed -e 's/^$/./' -e 's/^/ /' LICENSE-MIT)
  printf 'fdbroker (%s-%s) unstable; urgency=medium\n\n  * The changelog of fdbroker has the changes.\n\n -- %s  %s\n' \
    "$version" "$release" "$maintainer" "$(date -R -u -d "@$SOURCE_DATE_EPOCH")" > "$debian/changelog"
  for list in "${lists[@]}"; do
    name=${list##*/}
    {
      printf '\nPackage: %s\nArchitecture: any\nSection: %s\n' "$name" "$(field "$list" Section)"
      [ "$(field "$list" Section)" != libs ] || echo 'Multi-Arch: same'
      echo "Depends: \${shlibs:Depends}, \${misc:Depends}$(field "$list" Requires | sed 's/.*/, & (= ${binary:Version})/')"
      field "$list" Recommends | sed 's/^/Recommends: /'
      printf 'Description: %s\n%s\n' "$(field "$list" Summary)" "$(sed 's/^/ /' <<< "$description")"
    } >> "$debian/control"
    paths "$list" "/usr/lib/$multiarch" | sed -e '/\/$/d' -e "s|^/usr/lib/systemd|${units}/systemd|" -e 's|^/||' > "$debian/$name.install"
  done
  (cd "$tree" && INSTALL=$install_sh UNITS=$units dpkg-buildpackage -b -us -uc -rfakeroot) > "$work/log" 2>&1 ||
    { tail -n 40 "$work/log" >&2; die "dpkg-buildpackage failed; its messages are above"; }
  mv "$work"/*.deb "$output/"
}

build_rpm() {
  local lists_of_rpm=$work/lists list name macros=''
  for name in rpmbuild debugedit eu-strip; do
    command -v "$name" > /dev/null || die "$name is not installed" "run: sudo apt-get install rpm debugedit elfutils, or: dnf install rpm-build"
  done
  [ -n "$(rpm --eval '%{?systemd_post:yes}')" ] || macros=--load=$root/packaging/rpm/macros.systemd
  mkdir -p "$lists_of_rpm"
  for list in "${lists[@]}"; do
    name=$(field "$list" Rpm); name=${name:-${list##*/}}
    paths "$list" "$(rpm --eval '%{_libdir}')" | sed -e 's|.*/$|%dir &|' -e 's|^/etc/.*[^/]$|%config(noreplace) &|' > "$lists_of_rpm/$name"
    [ "$name" != fdbroker ] || continue
    {
      printf '%%package -n %s\nSummary: %s\n' "$name" "$(field "$list" Summary)"
      field "$list" Requires | sed 's/.*/Requires: &%{?_isa} = %{version}-%{release}/'
      field "$list" Recommends | sed 's/^/Recommends: /'
      printf '%%description -n %s\n%s\n%%files -n %s -f %%{fdbroker_lists}/%s\n' "$name" "$description" "$name" "$name"
      [ "$(field "$list" Section)" != libs ] || printf '%%post -n %s -p /sbin/ldconfig\n%%postun -n %s -p /sbin/ldconfig\n' "$name" "$name"
    } >> "$work/subpackages"
  done
  echo "$description" > "$work/description"
  rpmbuild -bb --quiet $macros --define "_topdir $work/rpm" --define "_rpmdir $output" --define '_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm' \
    --define "fdbroker_version $version" --define "fdbroker_release $release" --define "fdbroker_lists $lists_of_rpm" \
    --define "fdbroker_subpackages $work/subpackages" --define "fdbroker_summary $(field packaging/packages/fdbroker Summary)" \
    --define "fdbroker_description $work/description" --define "fdbroker_changed $(LC_ALL=C date -u -d "@$SOURCE_DATE_EPOCH" '+%a %b %d %Y') $maintainer" \
    --define "fdbroker_sysusers $root/systemd/sysusers.d/fdbroker.conf" \
    --define "install_sh $install_sh" --define 'use_source_date_epoch_as_buildtime 1' packaging/rpm/fdbroker.spec > "$work/log" 2>&1 ||
    { tail -n 40 "$work/log" >&2; die "rpmbuild failed; its messages are above"; }
}

for kind in "${kinds[@]}"; do "build_$kind"; done
echo "build.sh: packages of fdbroker $version-$release are in $output"
