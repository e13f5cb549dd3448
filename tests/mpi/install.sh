#!/bin/bash
# Installs what tests/mpi, tests/install and tests/top need on a Debian 12 host: both MPIs, mpi4py, Slurm, pkg-config, a C
# compiler, tmux.
# It never removes a package, never edits the system's apt configuration, and names no mirror of its own.
# Needs root, unless everything is already there: then it only says so.
set -euo pipefail

say() { echo "install.sh: $*" >&2; }
die() { say "$1"; shift; for line in "$@"; do echo "  $line" >&2; done; exit 1; }

case ${1-} in
  "") ;;
  -h | --help)
    sed -n '2,5s/^# //p' "$0"
    echo "usage: tests/mpi/install.sh      (no options; running it again is harmless)"
    exit 0 ;;
  *) say "unknown argument '$1' (it takes none; --help explains)"; exit 2 ;;
esac

# What the scripts need, and the package that brings it: a command, or a path with wildcards.
needs="gcc:gcc g++:g++ pkg-config:pkg-config valgrind:valgrind
  mpirun.openmpi:openmpi-bin /usr/lib/*/openmpi/include/mpi.h:libopenmpi-dev
  mpirun.mpich:mpich /usr/include/*/mpich/mpi.h:libmpich-dev
  slurmctld:slurmctld slurmd:slurmd srun:slurm-client /usr/lib/*/slurm*/auth_none.so:slurm-wlm-basic-plugins ip:iproute2
  tmux:tmux /usr/bin/python3:python3 /usr/lib/python3/dist-packages/mpi4py:python3-mpi4py"

missing_packages() {
  local pair thing pairs
  # Words, whose wildcards are not for the shell to expand here.
  read -r -d '' -a pairs <<< "$needs" || true
  for pair in "${pairs[@]}"; do
    thing=${pair%%:*}
    command -v "$thing" > /dev/null || compgen -G "$thing" > /dev/null || echo "${pair#*:}"
  done
}

[ -n "$(missing_packages)" ] || { say "all there already"; exit 0; }

command -v apt-get > /dev/null ||
  die "this host has no apt-get" "install by hand the equivalents of: $(missing_packages | xargs)"
[ "$(id -u)" = 0 ] ||
  die "root is needed to install: $(missing_packages | xargs)" "run: sudo tests/mpi/install.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One installation at a time. Somebody else may have finished it while this one waited.
exec 9> /run/lock/fdbroker-mpi-install.lock
flock 9
packages=$(missing_packages | xargs)
[ -n "$packages" ] || { say "all there already"; exit 0; }

# apt works on its own package lists, so that the host's stay as they are.
mkdir -p "$work/lists/partial"
apt=(-qq -o "Dir::State::Lists=$work/lists" -o APT::Sandbox::User=root -o Acquire::Languages=none -o DPkg::Lock::Timeout=300)
say "reading the package lists"
apt-get "${apt[@]}" update < /dev/null >&2 9>&- || say "apt-get update complained; going on with what it got"

say "installing $packages"
# The packages are a list of words.
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get "${apt[@]}" install -y --no-install-recommends --no-remove \
  -o Dpkg::Use-Pty=0 $packages < /dev/null > "$work/log" 2>&1 9>&- || {
  tail -30 "$work/log" >&2
  die "apt-get could not install: $packages" "its own message is above; once that is settled, run this again"
}

left=$(missing_packages | xargs)
[ -z "$left" ] || die "still missing after the installation: $left" "is PATH complete? it is: $PATH"
say "done: $(mpirun.openmpi --version | sed -n 1p); MPICH $(mpirun.mpich --version | sed -n 's/^ *Version: *//p')"
