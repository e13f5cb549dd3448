#!/bin/bash
# Boots a real systemd in the virtual machine, installs the broker there with systemd/install.sh, and tries it as a service:
# three users under load, restart, kill -9, watchdog, stop and start, reload. The checks are in systemd-guest.sh. It never
# touches this machine's own systemd.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
root=$(cd "$here/../.." && pwd)

usage() {
  cat << 'HELP'
usage: tests/vm/systemd.sh [-s SUITE]... [-t SECONDS] [-p DIR]

Builds the programs here, boots Debian SUITE (bookworm: systemd 252, trixie: systemd 257) and runs the checks of
tests/vm/systemd-guest.sh in it. Without -s: all of them in bookworm, then in trixie what depends on the version of systemd,
so that it takes no longer than a few minutes: installation, start, one restart under load, stop and start with a store
that outlives the stop. Needs what tests/install.sh installs, and Debian 12 here: the guests run the programs built
here. Ends with the line `N passed, N failed`.

  -s SUITE     all checks in this one only; may be repeated
  -t SECONDS   limit for each (6000)
  -p DIR       with Debian's packages of fdbroker in DIR, of releases 1 and 2, in place of systemd/install.sh, an upgrade in place of
               the first restart, and what a purge leaves; then that what install.sh installs serves

exit status    0 nothing failed, 1 something did, 2 wrong usage, 77 no virtual machine here (the last line says why)
HELP
}

suites=()
# Half an hour on two busy cores; far more, so that it catches what hangs.
limit=6000 packages=''
[ "${1-}" != --help ] || { usage; exit 0; }
while getopts :s:t:p:h option; do
  case $option in
    s) suites+=("$OPTARG") ;;
    t) limit=$OPTARG ;;
    p) packages=$(realpath -- "$OPTARG") ;;
    h) usage; exit 0 ;;
    *) echo "systemd.sh: unknown option or no value: -$OPTARG (-h explains)" >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# = 0 ] || { echo "systemd.sh: it takes no arguments (-h explains)" >&2; exit 2; }
short=''
[ ${#suites[@]} -gt 0 ] || { suites=(bookworm trixie); short=trixie; }
if [ "$(id -u)" != 0 ]; then
  for tool in qemu-system-x86_64 busybox cpio xz zstd mmdebstrap newuidmap; do
    command -v "$tool" > /dev/null || { echo "$tool is not installed; run: sudo tests/install.sh"; exit 77; }
  done
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root" || exit 1
target=$(tests/programs.py) || { echo "the build failed"; echo "0 passed, 1 failed"; exit 1; }

# The files that install.sh reads and installs. Debug information would only fill the guest's memory.
stage=$work/fdbroker
mkdir -p "$stage/target/release"
tar -c Cargo.toml README.md LICENSE-* systemd packaging/selinux libclient/SETTINGS.md libclient/protocol/PROTOCOL.md libclient/examples \
  libclient/capi/examples | tar -x -C "$stage"
for program in "$target/fdbroker" "$target/fdbrokerd" "$target/examples/vm-client"; do
  place=$stage/target/release/$(basename "$program")
  strip --strip-debug -o "$place" "$program" 2> /dev/null || cp "$program" "$place"
done
if [ -n "$packages" ]; then
  mkdir "$stage/packages"
  for release in 1 2; do cp "$packages"/fdbroker_*-"${release}"_*.deb "$stage/packages/$release.deb" || exit 1; done
  # The packages have these.
  rm "$stage/target/release/fdbroker" "$stage/target/release/fdbrokerd"
fi
tar -c -C "$work" -f "$work/fdbroker.tar" fdbroker

passed=0 failed=0
for suite in "${suites[@]}"; do
  if [ "$suite" = "$short" ]; then selection=short; else selection=full; fi
  echo "== Debian $suite, $selection"
  status=0
  "$here/run.sh" -s "$suite" -m 1536 -t "$limit" -f "$work/fdbroker.tar" "$here/systemd-guest.sh" "$selection" 2>&1 |
    tee "$work/log" || status=$?
  read -r p f < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$work/log" | tail -n 1)
  # Without its last line the script has died half-way.
  if [ -z "${p-}" ]; then
    echo "FAILED  the checks did not come to their end (status $status)"
    p=$(grep -c '^ok  ' "$work/log") f=$(($(grep -c '^FAILED  ' "$work/log") + 1))
  fi
  passed=$((passed + p)) failed=$((failed + f))
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
