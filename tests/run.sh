#!/bin/bash
# Runs every test of the project and ends with the line `N passed, N failed`. Must never skip in silence: what
# this machine cannot run is named as not run, and counts as failed when CI is set.
. "$(dirname "$(readlink -f "$0")")/common/start.sh"
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

case ${1-} in
  '') ;;
  -h | --help)
    cat << 'HELP'
usage: tests/run.sh

Builds the workspace and runs: the unit, integration and end-to-end tests of every package, the simulator (two million
steps, tests/sim) and its mutations, a short run of the fuzz targets (tests/fuzz), hostile clients (tests/hostile), ranks and
daemons in namespaces (tests/container), planted leaks (tests/audit), the C programs of the C ABI (tests/capi), the command's
demo, its live view (tests/top), the installation and its examples (tests/install), jobs under Open MPI, MPICH and Slurm
(tests/mpi), the end-to-end tests, the demo on real dma-bufs and the service under systemd in a virtual machine (tests/vm),
and the Level Zero bindings and test driver under real loaders (tests/level_zero). No root needed, but without it, or without
qemu, MPI or libze1, some tests are named as not run; with CI=true in the environment these count as failed. Logs of failed
parts are printed. Exit status: 0 when nothing failed.
HELP
    exit 0 ;;
  *) echo "tests/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

passed=0 failed=0 not_run=()
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# Tests that need root or a kernel feature add a line here when they do not run (tests/common).
export FDBROKER_NOT_RUN_LOG=$logs/not-run
: > "$FDBROKER_NOT_RUN_LOG"

heading() { printf '\n== %s\n' "$*"; began=$SECONDS; }
took() { printf '%d s\n' $((SECONDS - began)); }

# part NAME COMMAND...: one part that counts as one test.
part() {
  local name=$1 log=$logs/part status=0; shift
  heading "$name"
  "$@" > "$log" 2>&1 || status=$?
  if [ "$status" = 0 ]; then
    passed=$((passed + 1)); tail -n 3 "$log"; took
  else
    failed=$((failed + 1)); echo "FAILED (exit $status): $*"; tail -n 80 "$log"
  fi
}

# counted NAME COMMAND...: one part that prints cargo's `test result:` lines, or ends with a line `N passed, N failed` that
# has all of them (those before it are of its own parts).
counted() {
  local name=$1 log=$logs/part status=0 p f; shift
  heading "$name"
  "$@" > "$log" 2>&1 || status=$?
  read -r p f < <(awk '
    /^test result:/ { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^failed/) f += $(i-1) } }
    /^[0-9]+ passed, [0-9]+ failed$/ { last_p = $1; last_f = $3 }
    END { print p + last_p + 0, f + last_f + 0 }' "$log")
  if [ "$status" = 77 ] && [ $((p + f)) = 0 ]; then
    # What it needs is not installed; its last line says what to do.
    not_run+=("$name: $(tail -n 1 "$log")"); echo "not run"; return
  fi
  # A part that died, or that ran nothing, is a failure even when no test said so.
  if [ "$status" != 0 ] && [ "$f" = 0 ] || [ $((p + f)) = 0 ]; then f=$((f + 1)); fi
  passed=$((passed + p)) failed=$((failed + f))
  echo "$p passed, $f failed, $(took)"
  [ "$f" = 0 ] || {
    grep -E '^(test .*FAILED|failures:|thread .* panicked|error)' "$log" | sort -u | head -40
    grep -A 30 '^FAILED ' "$log" | head -120
    tail -n 80 "$log"
  }
}

heading "build"
if ! cargo build --release --workspace --quiet || ! cargo test --workspace --no-run --quiet; then
  echo "the build failed"; printf '\n0 passed, 1 failed\n'; exit 1
fi
fdbroker=${CARGO_TARGET_DIR:-target}/release/fdbroker

counted "packages" cargo test --workspace --no-fail-fast --quiet
counted "simulator: two million steps" tests/sim/run.sh --steps 2000000
counted "simulator: each promise of the core broken on purpose" tests/sim/mutations.sh
counted "fuzz: every kept input, and a short run" tests/fuzz/run.sh --seconds 2
counted "hostile clients beside a good one" tests/hostile/run.sh --quick
counted "containers: ranks and daemons in namespaces" tests/container/run.sh
counted "audit: leaks planted, each named" tests/audit/run.sh
counted "C ABI: C and C++ programs, and these under valgrind" tests/capi/run.sh
part "demo: 4 ranks, every byte, below the cap" tests/demo.sh "$fdbroker" demo --json
part "demo: 8 ranks, every byte, below the cap" \
  tests/demo.sh "$fdbroker" demo --ranks 8 --buffers 200 --max-fds 256 --json

counted "CUDA: library, broker and demo, without a GPU against a stand-in for the driver" tests/cuda_stub/run.sh
counted "top: a real terminal (tmux)" tests/top/run.sh
counted "installation, pkg-config, examples" tests/install/run.sh
counted "MPI: Open MPI, 4 ranks" tests/mpi/run.sh openmpi 4
counted "MPI: MPICH, 4 ranks" tests/mpi/run.sh mpich 4
counted "MPI: Slurm's srun, 4 ranks" tests/mpi/slurm.sh 4

if command -v qemu-system-x86_64 > /dev/null || [ "$(id -u)" = 0 ]; then
  counted "virtual machine: the recipe itself" tests/vm/selftest.sh
  counted "virtual machine: end to end on real dma-bufs" tests/vm/e2e.sh
  counted "virtual machine: audit of real dma-bufs" tests/audit/run.sh --vm
  part "virtual machine: demo on real dma-bufs" tests/demo.sh \
    tests/vm/run.sh "$fdbroker" demo --memory udmabuf --ranks 4 --buffers 50 --max-fds 64 --json
  counted "virtual machine: the broker as a service of systemd" tests/vm/systemd.sh -s bookworm
else
  not_run+=("virtual machine (4 parts): qemu is not installed; run: sudo tests/vm/install.sh")
fi

if [ -e /usr/lib/x86_64-linux-gnu/libze_loader.so.1 ] || [ "$(id -u)" = 0 ]; then
  counted "level zero: bindings and test driver under two loaders" tests/level_zero/run.sh
else
  not_run+=("level zero: libze1 is not installed; run: sudo tests/level_zero/install.sh")
fi

while IFS= read -r line; do
  # Such a test returned early and was counted as passed.
  passed=$((passed - 1)); not_run+=("$line")
done < "$FDBROKER_NOT_RUN_LOG"

echo
for line in ${not_run[@]+"${not_run[@]}"}; do
  echo "not run: $line"
  [ -z "${CI-}" ] || failed=$((failed + 1))
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
