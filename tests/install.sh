#!/bin/bash
# Installs the Debian packages that the tests need on a Debian 12 host: for virtual machines, MPI and Slurm, Level Zero, C programs,
# packages, Python.
# It never removes a package, never starts a server, never edits the system's apt configuration, and names no mirror of its own.
# Needs root, unless everything is already there: then it only says so.
set -euo pipefail

say() { echo "tests/install.sh: $*" >&2; }
die() { say "$1"; shift; for line in "$@"; do echo "  $line" >&2; done; exit 1; }

case ${1-} in
  "" | release) ;;
  -h | --help)
    sed -n '2,5s/^# //p' "$0"
    echo "usage: tests/install.sh [release]      (release: what tests/release.sh needs, too; running it again is harmless)"
    exit 0 ;;
  *) say "unknown argument '$1' (--help explains)"; exit 2 ;;
esac

# What the tests need, and the package that brings it: a command, or a path with wildcards.
# The last two lines are for packages (packaging/test.sh).
# libclang with its headers is for bindgen (libclient/level-zero-sys/regen.sh); uidmap lets a user without root build the
# systemd guest.
needs="gcc:gcc g++:g++ pkg-config:pkg-config cmake:cmake valgrind:valgrind tmux:tmux pgrep:procps
  nm:binutils /usr/bin/python3:python3 ip:iproute2 /usr/lib/python3.*/ensurepip:python3-venv
  /usr/lib/python3/dist-packages/numpy:python3-numpy /usr/lib/python3/dist-packages/torch:python3-torch
  busybox:busybox-static cpio:cpio xz:xz-utils zstd:zstd mmdebstrap:mmdebstrap newuidmap:uidmap
  mpirun.openmpi:openmpi-bin /usr/lib/*/openmpi/include/mpi.h:libopenmpi-dev
  mpirun.mpich:mpich /usr/include/*/mpich/mpi.h:libmpich-dev /usr/lib/python3/dist-packages/mpi4py:python3-mpi4py
  slurmctld:slurmctld slurmd:slurmd srun:slurm-client /usr/lib/*/slurm*/auth_none.so:slurm-wlm-basic-plugins
  /usr/lib/*/libze_loader.so.1:libze1 patchelf:patchelf /usr/lib/llvm-14/lib/libclang.so:libclang-14-dev
  dh:debhelper dpkg-buildpackage:dpkg-dev fakeroot:fakeroot lintian:lintian rpmbuild:rpm debugedit:debugedit eu-strip:elfutils rpmlint:rpmlint
  checkmodule:checkpolicy semodule_package:semodule-utils"
# From backports, because a host that has qemu-utils from there cannot take the older emulator of the main suite beside it.
needs_of_backports="qemu-system-x86_64:qemu-system-x86"
# The one program alone, into /usr/local/bin: its package would start a server, now and at each boot, and bring 100 MB.
needs_alone="promtool:prometheus"

# For aarch64: a linker, its C library, an emulator.
if [ "${1-}" = release ]; then
  needs="$needs aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu /usr/aarch64-linux-gnu/include/stdio.h:libc6-dev-arm64-cross qemu-aarch64:qemu-user"
fi

missing() { # PAIRS: the packages whose thing is not there
  local pair pairs thing
  # Words, whose wildcards are not for the shell to expand here.
  read -r -d '' -a pairs <<< "$1" || true
  for pair in "${pairs[@]}"; do
    thing=${pair%%:*}
    command -v "$thing" > /dev/null || compgen -G "$thing" > /dev/null || echo "${pair#*:}"
  done | xargs
}
all_missing() { echo "$(missing "$needs") $(missing "$needs_of_backports") $(missing "$needs_alone")" | xargs; }

[ -n "$(all_missing)" ] || { say "all there already"; exit 0; }

. /etc/os-release
[ "${VERSION_CODENAME-} $(dpkg --print-architecture 2> /dev/null)" = "bookworm amd64" ] ||
  die "this host is not Debian 12 on amd64" "install by hand the equivalents of: $(all_missing)"
[ "$(id -u)" = 0 ] || die "root is needed to install: $(all_missing)" "run: sudo tests/install.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One installation at a time. Another run may have finished it while this one waited.
exec 9> /run/lock/fdbroker-tests-install.lock
flock 9
[ -n "$(all_missing)" ] || { say "all there already"; exit 0; }

# apt works on package lists of its own and on a copy of the sources, so that the backports suite can be added for this one
# installation only, and the host's lists stay as they are.
mkdir -p "$work/lists/partial" "$work/parts"
find /etc/apt/sources.list.d -maxdepth 1 -type f \( -name '*.list' -o -name '*.sources' \) -exec cp {} "$work/parts/" \;
apt=(-qq -o "Dir::State::Lists=$work/lists" -o "Dir::Etc::SourceParts=$work/parts" -o APT::Sandbox::User=root
  -o Acquire::Languages=none -o DPkg::Lock::Timeout=300)
update() { apt-get "${apt[@]}" update < /dev/null >&2 9>&-; }
mirror_of() { apt-get "${apt[@]}" indextargets --format '$(REPO_URI)' "Codename: $1" 'Component: main' | sed -n 1p; }
install() { # APT OPTION... PACKAGE...
  DEBIAN_FRONTEND=noninteractive apt-get "${apt[@]}" install -y --no-install-recommends --no-remove -o Dpkg::Use-Pty=0 "$@" \
    < /dev/null > "$work/log" 2>&1 9>&- || {
    tail -30 "$work/log" >&2
    die "apt-get could not install: $*" "its own message is above; once that is settled, run this again"
  }
}

say "reading the package lists"
update || say "apt-get update complained; going on with what it got"
packages=$(missing "$needs")
if [ -n "$packages" ]; then
  say "installing $packages"
  # The packages are a list of words.
  # shellcheck disable=SC2086
  install $packages
fi
packages=$(missing "$needs_of_backports")
if [ -n "$packages" ]; then
  if [ -z "$(mirror_of bookworm-backports)" ]; then
    mirror=$(mirror_of bookworm)
    [ -n "$mirror" ] || die "apt knows no mirror that carries bookworm" "check /etc/apt/sources.list*, then: apt-get update"
    {
      printf 'Types: deb\nURIs: %s\nSuites: bookworm-backports\nComponents: main\n' "$mirror"
      key=/usr/share/keyrings/debian-archive-keyring.gpg
      if [ -s "$key" ]; then echo "Signed-By: $key"; fi
    } > "$work/parts/fdbroker-backports.sources"
    update || true
    [ -n "$(mirror_of bookworm-backports)" ] || die "the mirror $mirror has no bookworm-backports" \
      "add a mirror that has it to /etc/apt/sources.list.d, then run this again"
  fi
  say "installing $packages from bookworm-backports"
  # shellcheck disable=SC2086
  install -t bookworm-backports $packages
fi
take_out() { # PROGRAM PACKAGE
  (cd "$work" && apt-get "${apt[@]}" download "$2" < /dev/null > "$work/log" 2>&1 9>&- &&
    dpkg-deb --fsys-tarfile "$work/$2"_*.deb | tar -xO "./usr/bin/$1" > "$work/$1" &&
    chmod 755 "$work/$1" && mv "$work/$1" "/usr/local/bin/$1") || {
    tail -30 "$work/log" >&2
    die "cannot take $1 out of the package $2" "its own message is above; once that is settled, run this again"
  }
}
for pair in $needs_alone; do
  [ -n "$(missing "$pair")" ] || continue
  say "taking ${pair%%:*} out of the package ${pair#*:}"
  take_out "${pair%%:*}" "${pair#*:}"
done

left=$(all_missing)
[ -z "$left" ] || die "still missing after the installation: $left" "is PATH complete? it is: $PATH"
say "done"
