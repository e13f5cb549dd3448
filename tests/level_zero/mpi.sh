#!/bin/bash
# Measures what handles cost between two MPI ranks, with the driver alone and under the layer, and ends with
# `N passed, N failed`. Must never pass a way that did not share every byte.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."

case ${1-} in
  openmpi | mpich) ;;
  *)
    cat << 'HELP'
usage: tests/level_zero/mpi.sh openmpi|mpich [BUFFERS [BYTES]]     (100 of 1 MiB)

Prints a table: microseconds for the first zeMemGetIpcHandle of a buffer, for each further one, for zeMemOpenIpcHandle and
zeMemCloseIpcHandle, for both together of the same handle again (reopen), and the bandwidth of copies of opened memory in GB/s.
The driver alone passes opaque handles by value, which takes the right to trace the other rank; with the layer no such right is
needed. Exit status 77: that MPI is not installed.
HELP
    [ "${1-}" = --help ] || [ "${1-}" = -h ]
    exit ;;
esac
mpi=$1; shift
for tool in "mpicc.$mpi" "mpirun.$mpi"; do
  command -v "$tool" > /dev/null || { echo "$tool is not installed; run: sudo tests/install.sh"; exit 77; }
done
limit_s=300 passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

programs=$(tests/programs.py) || exit 1
export ZE_ENABLE_ALT_DRIVERS=$programs/libfdbroker_ze_test_driver.so
unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET LD_PRELOAD
"mpicc.$mpi" -std=c99 -D_POSIX_C_SOURCE=200809L -O2 -Wall -Wextra -Werror "$here/issue448.c" -o "$work/issue448" \
  -l:libze_loader.so.1 || { echo "mpicc.$mpi failed"; exit 1; }

# Shared memory and loopback only; a rank that waits lets the other one run.
as_root=()
[ "$(id -u)" != 0 ] || as_root=(--allow-run-as-root)
case $mpi in
  openmpi) launch=(mpirun.openmpi ${as_root[@]+"${as_root[@]}"} --oversubscribe -n 2 --mca btl self,vader
    --mca btl_vader_single_copy_mechanism none --mca mpi_yield_when_idle 1 --mca oob_tcp_if_include lo --mca plm isolated) ;;
  mpich) launch=(env FI_PROVIDER=tcp FI_TCP_IFACE=lo mpirun.mpich -launcher fork -iface lo -n 2) ;;
esac

# way NAME COMMAND...: one line of the table.
way() {
  local name=$1 out; shift
  if out=$(timeout -k 5 "$limit_s" "$@" "${launch[@]}" "$work/issue448" "$name" "${sizes[@]}" 2> "$work/log") && [ -n "$out" ]; then
    echo "$out"
    passed=$((passed + 1))
  else
    echo "FAILED  $name"; cat "$work/log"
    failed=$((failed + 1))
  fi
}
sizes=("${@:-100}")
echo "| $mpi | buffers | Get us | again us | Open us | Close us | reopen us | copy GB/s |"
echo "|---|---|---|---|---|---|---|---|"
way "driver alone" env ZE_TEST_DRIVER_HANDLES=opaque
way "layer" env ZE_TEST_DRIVER_HANDLES=legacy "$programs/fdbroker" run --level-zero --
way "layer, 64 fds" env ZE_TEST_DRIVER_HANDLES=legacy "$programs/fdbroker" run --level-zero --max-fds 64 --
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
