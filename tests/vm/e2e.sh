#!/bin/bash
# Runs the end-to-end tests in the virtual machine as root: on real dma-bufs (arenas by udmabuf, isolated memory of the dma-heap),
# or on an older kernel. It never builds for the guest: the programs are this machine's.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

usage() {
  cat << 'HELP'
usage: tests/vm/e2e.sh [--kernel 6.12|6.1] [--sample] [FILTER | OPTION]...

Runs tests/e2e in the virtual machine; FILTERs and OPTIONs are those of any Rust test program, such as: recall --test-threads=1
Ends with the line `N passed, N failed`.

  --kernel 6.12   the default: dma-bufs of udmabuf and the dma-heap
  --kernel 6.1    the stock kernel of Debian 12, which lacks SO_PEERPIDFD, F_DUPFD_QUERY and SO_PASSRIGHTS, and maps a
                  write-sealed memfd shared from an fd that is open for reading alone. It has no udmabuf and no dma-heap: memory
                  is memfds, and a dma-buf of vgem.
  --sample        as in tests/run.sh, some minutes instead of ten: on 6.12 the tests in which the kind of memory matters, on 6.1
                  those that depend on the kernel's age
HELP
}

# What deposits, maps, recalls or keeps memory of a kind. The others say the same of any kind, and run outside: which handles are good,
# how long an owner is waited for, who has died, what comes ahead, and a full fd table of the client's among them. The caps under
# pressure are also those of the demo that runs in a virtual machine.
of_memory=(
  cache:: comeback:: deposits:: exports:: fd_store:: keep:: lifetime:: recall:: resident:: takeover::
  # Brokers that are killed under load, for minutes: of memory they say nothing that the others do not.
  --skip comeback::ranks_when
  # Beside another machine on two cores a lane may not run for a second, which the broker calls hung. It runs outside, and here alone.
  --skip fifty_times
)
# What depends on the age of the kernel.
of_age=(
  old_kernel::          # what this kernel lacks, a dma-buf of vgem, reading through shared maps
  sealing:: mapped::    # seals with a map left, in a child, pinned; readers' fds and maps
  kept::                # kept objects over deaths of the daemon
  deaths::              # makers of objects that die
  death::               # without SO_PEERPIDFD: the process is found by its pid
  fd_store::            # without F_DUPFD_QUERY: stored fds are compared by kcmp(2)
  messages::            # without SO_PASSRIGHTS: fds that nobody asked for are received and closed
)

kernel=6.12 is_sample='' arguments=() dmabuf=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --kernel) kernel=${2-}; shift ;;
    --sample) is_sample=yes ;;
    *) arguments+=("$1") ;;
  esac
  shift || break
done
case $kernel in
  6.12) memory=udmabuf sample=("${of_memory[@]}") ;;
  6.1) memory=memfd sample=("${of_age[@]}") dmabuf=(-e FDBROKER_TEST_DMABUF=vgem) ;;
  *) echo "e2e.sh: --kernel takes 6.12 or 6.1, not '$kernel' (--help explains)" >&2; exit 2 ;;
esac
[ -z "$is_sample" ] || arguments+=("${sample[@]}")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$(tests/programs.py)
# Debug information would only fill the guest's memory.
strip --strip-debug -o "$work/fdbrokerd" "$folder/fdbrokerd"
strip --strip-debug -o "$work/e2e" "$(tests/programs.py e2e)"
status=0
# The limit is several times what all tests take beside another machine, and below that of tests/run.py, so that this says where it hung.
# tests/run.py would count the results' lines beside the last one.
tests/vm/run.sh -k "$kernel" -t 3500 -f "$work/fdbrokerd" -f "$work/e2e" -e FDBROKERD=/t/fdbrokerd -e "FDBROKER_TEST_MEMORY=$memory" "${dmabuf[@]}" \
  -e CI=true -e TMPDIR=/tmp tests/vm/e2e-guest "${arguments[@]}" 2>&1 |
  sed -u 's/^test result: /result: /' | tee "$work/log" || status=$?
if ! tail -n 1 "$work/log" | grep -qx '[0-9]* passed, [0-9]* failed'; then
  echo "FAIL  the tests did not come to their end (status $status)"
  echo "0 passed, 1 failed"
fi
exit "$status"
