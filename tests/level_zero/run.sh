#!/bin/bash
# Tests the Level Zero bindings, the test driver, the library, the demo and fdbroker's layer under two real loaders.
# Ends with `N passed, N failed`. Must never skip a part in silence: a part that cannot run here is named as not run.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."

in_vm=''
case ${1-} in
  '') ;;
  --vm) in_vm=yes ;;
  programs) "$here/programs/run.sh" umf && exec "$here/programs/run.sh" intel-mpi; exit ;;
  -h | --help)
    cat << 'HELP'
usage: tests/level_zero/run.sh [--vm | programs]

Uses the programs of the workspace's dev profile, built by tests/programs.py: the command, the layer, the test driver and the
test programs. Runs these parts, as many at once as there are processors (one without root), and prints the seconds of each:

  loader 1.8.12    Debian 12's libze1 (spec 1.4: no zeMemPutIpcHandle): bindings, library, layer, demo
  C ABI            the C program tests/capi/gpu.c, under each loader, and without a driver
  loader 1.20.6    Debian 13's (spec 1.12), unpacked into tests/level_zero/img: the same
  handles          what a handle costs between two ranks of Open MPI and of MPICH (mpi.sh), small: every byte must be right
  UMF              programs/run.sh umf: its wheel, unmodified
  bindings         makes the checked-in bindings again and compares; needs libclang, and builds bindgen once
With `programs`, programs/run.sh alone: UMF's wheel and Intel MPI's (129 MB). Intel's own driver, over an emulated node, has a command of its own,
intel/run.sh: its packages, 100 MB or so, are another version each week.
With --vm, on real dma-bufs in virtual machines (tests/vm; needs qemu): library, layer, bindings and driver

The driver is tests/level_zero/driver: no GPU is needed. The library's cases (tests/level_zero/library) start the real daemon
and separate processes. As root it installs what is missing (tests/install.sh). A part that cannot run here is
named as not run, and counts as failed when CI is set. Exit status: 0 when nothing failed, 77 when there is no such loader
here (the last line says what to install).

One case or another program by hand:
  ZE_ENABLE_ALT_DRIVERS=$PWD/target/debug/libfdbroker_ze_test_driver.so ZE_TEST_LOADER=1.8.12 \
    target/debug/ze-test-client memory_when_written_is_read_back
  ZE_ENABLE_ALT_DRIVERS=$PWD/target/debug/libfdbroker_ze_test_driver.so target/debug/fdbroker demo --memory level-zero
  ZE_ENABLE_ALT_DRIVERS=$PWD/target/debug/libfdbroker_ze_test_driver.so FDBROKER=$PWD/target/debug/fdbroker \
    target/debug/ze-test-library pointer_when_exported_twice_is_one_fd_at_the_broker
ZE_TEST_DRIVER_TRACE=yes prints every call; tests/level_zero/driver/src/lib.rs lists the other switches.
HELP
    exit 0 ;;
  *) echo "tests/level_zero/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
finish() { echo "$passed passed, $failed failed"; [ "$failed" = 0 ]; exit; }
give_up() { echo "tests/level_zero/run.sh: $*" >&2; failed=$((failed + 1)); finish; }

# A part takes a minute or two, and building bindgen, once, some more. Far more, because the machine may be loaded; less than
# tests/run.py gives to all of them.
part_limit_s=1100 bindings_limit_s=1100

# --- parts ----------------------------------------------------------------------------------------------------------
# A part is a command whose last line is `N passed, N failed`. Status 77: it cannot run here, and its last line says why.
parts=()

# Fds in flight are counted per user: without root, two parts whose processes may have 256 fds would stop each other.
at_once=$(nproc)
[ "$(id -u)" = 0 ] || at_once=1
# start NAME COMMAND...: runs a part in the background, once there is room for it.
start() {
  local number=${#parts[@]}
  parts+=("$1"); shift
  while [ "$(jobs -pr | wc -l)" -ge "$at_once" ]; do wait -n; done
  (
    SECONDS=0
    "$@" > "$work/$number.log" 2>&1 < /dev/null
    echo "$? $SECONDS" > "$work/$number.end"
  ) &
}

# Waits for all parts, prints them in their order, and counts.
collect() {
  local number log status seconds p f
  wait
  for number in "${!parts[@]}"; do
    log=$work/$number.log p=0 f=0
    read -r status seconds < "$work/$number.end"
    read -r p f < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$log" | tail -n 1)
    echo "-- ${parts[number]}: ${p:-0} passed, $seconds s"
    grep -v -e '^ok ' -e ' passed, 0 failed$' "$log"
    if [ "$status" = 77 ]; then not_run "level zero: ${parts[number]}" "$(tail -n 1 "$log")"; continue; fi
    # A part that died, or that ran nothing, has failed even when none of its cases said so.
    if [ "$status" != 0 ] && [ "${f:-0}" = 0 ] || [ "${p:-0}" = 0 ]; then f=$((${f:-0} + 1)); fi
    passed=$((passed + ${p:-0})) failed=$((failed + ${f:-0}))
  done
}

# one COMMAND...: a part of one test.
one() {
  local status=0
  "$@" || status=$?
  case $status in 0) echo "1 passed, 0 failed" ;; 77) ;; *) echo "0 passed, 1 failed" ;; esac
  return "$status"
}

# on_dma_bufs FILE... -- PROGRAM...: a program in a virtual machine, where exports are real dma-bufs (udmabuf), together with
# FILEs. Without their debug information, which no test reads, the files are small enough for the guest's memory.
on_dma_bufs() {
  local file arguments=() files=() own=$work/vm
  while [ "$1" != -- ]; do files+=(-f "$own/$1"); shift; done
  shift
  for file in "$libraries"/libze_{loader,tracing_layer}.so.1; do arguments+=(-f "$file"); done
  # One processor each: the guest's programs take turns, and two guests run side by side.
  timeout "$part_limit_s" tests/vm/run.sh -c 1 -t "$part_limit_s" "${arguments[@]}" "${files[@]}" \
    -f "$own/libfdbroker_ze_test_driver.so" -f "$own/ze-test-memory" -e LD_LIBRARY_PATH=/t -e ZE_TEST_LOADER=1.8.12 \
    -e ZE_TEST_EMULATED=yes -e ZE_ENABLE_ALT_DRIVERS=/t/libfdbroker_ze_test_driver.so -e ZE_TEST_DRIVER_MEMORY=udmabuf \
    -e FDBROKER=/t/fdbroker -e ZE_TEST_FDBROKER=/t/fdbroker "$own/$1" "${@:2}"
}

# Copies every byte through the driver and checks it.
demo() { one timeout "$part_limit_s" tests/demo.sh "$1" demo --memory level-zero --json "${@:2}"; }
# With a driver that leaves an imported fd open, for its caller to close.
demo_open_fds() { ZE_TEST_DRIVER_IMPORT_FD=caller-closes demo "$@"; }

# Without a driver or a loader the demo must end with an error that names what is missing.
demo_refused() { # WORDS COMMAND...
  local words
  if words=$("${@:2}" demo --memory level-zero --json 2>&1 > /dev/null); then
    echo "the demo did not fail"; return 1
  fi
  [[ $words == *"$1"* ]] || { echo "no $1 in: $words"; return 1; }
}

# --- what they need -------------------------------------------------------------------------------------------------
libraries=/usr/lib/x86_64-linux-gnu
if [ "$(id -u)" = 0 ]; then tests/install.sh || give_up "the host is not ready (see above)"; fi
[ -e "$libraries/libze_loader.so.1" ] ||
  { echo "libze1 is not installed; run: sudo tests/install.sh"; exit 77; }
version=$(dpkg-query -W -f '${Version}' libze1 2> /dev/null)
[ "${version%-*}" = 1.8.12 ] ||
  { echo "libze1 here is ${version:-of no package}; the cases know 1.8.12: install Debian 12's"; exit 77; }

SECONDS=0
target=$(tests/programs.py) || give_up "the build failed"
echo "-- build: $SECONDS s"
export ZE_ENABLE_ALT_DRIVERS=$target/libfdbroker_ze_test_driver.so
# No variable of the caller's shell may change a case.
for variable in ${!ZE_TEST_DRIVER_@} ${!FDBROKER_@} ZE_AFFINITY_MASK ZE_FLAT_DEVICE_HIERARCHY LD_LIBRARY_PATH LD_PRELOAD; do
  case $variable in FDBROKER_ZE_IMG | FDBROKER_VM_IMG | FDBROKER_NOT_RUN_LOG | FDBROKER_INTEL_DEBS) ;; *) unset "$variable" ;; esac
done
export FDBROKER=$target/fdbroker

# --- the parts ------------------------------------------------------------------------------------------------------
if [ -n "$in_vm" ]; then
  command -v qemu-system-x86_64 > /dev/null || { echo "qemu is not installed; run: sudo tests/install.sh"; exit 77; }
  mkdir "$work/vm"
  for file in libfdbroker_ze_test_driver.so libfdbroker_ze.so ze-test-{memory,client,library,unmodified} fdbroker; do
    strip --strip-debug -o "$work/vm/$file" "$target/$file" || give_up "strip (Debian: binutils) failed"
  done
  start "real dma-bufs: the library" on_dma_bufs fdbroker -- ze-test-library
  start "real dma-bufs: layer" on_dma_bufs libfdbroker_ze.so ze-test-unmodified \
    -- fdbroker run --level-zero --max-fds 256 -- ./ze-test-unmodified broker
  start "real dma-bufs: bindings and driver" on_dma_bufs -- ze-test-client
  collect
  finish
fi

# The longest ones first, and the loaders in turns: side by side they share the processors evenly.
start "loader 1.8.12: the library" timeout "$part_limit_s" "$target/ze-test-library"
newer=yes
if command -v patchelf > /dev/null; then
  for program in ze-test-client ze-test-unmodified ze-test-library fdbroker; do
    "$here/debian13.sh" "$target/$program" "$work/$program" || give_up "no Debian 13 loader (see above)"
  done
  start "loader 1.20.6: the library" timeout "$part_limit_s" "$work/ze-test-library"
else
  newer=''
  not_run "level zero: loader 1.20.6" "patchelf is not installed; run: sudo tests/install.sh"
fi
start "loader 1.8.12: layer" timeout "$part_limit_s" env ZE_TEST_LOADER=1.8.12 \
  "$here/layer.sh" "$target" "$target/ze-test-unmodified" "$target/ze-test-client"
[ -z "$newer" ] || start "loader 1.20.6: layer" timeout "$part_limit_s" env ZE_TEST_LOADER=1.20.6 \
  "$here/layer.sh" "$target" "$work/ze-test-unmodified" "$work/ze-test-client"

start "loader 1.8.12: bindings and driver" timeout "$part_limit_s" env ZE_TEST_LOADER=1.8.12 "$target/ze-test-client"
start "loader 1.8.12: demo" demo "$FDBROKER"
start "demo without a driver: an error that says so" one demo_refused "no driver" \
  env ZE_ENABLE_ALT_DRIVERS=/no/such/driver.so "$FDBROKER"
# An empty file of the loader's name hides the system's loader.
mkdir "$work/no-loader" && : > "$work/no-loader/libze_loader.so.1"
start "demo without a loader: an error that says so" one demo_refused "libze_loader.so.1" \
  env LD_LIBRARY_PATH="$work/no-loader" "$FDBROKER"
if [ -n "$newer" ]; then
  start "loader 1.20.6: bindings and driver" timeout "$part_limit_s" env ZE_TEST_LOADER=1.20.6 "$work/ze-test-client"
  # This loader has zeMemPutIpcHandle, so no fd stays behind: many more buffers than fds.
  direct=(--without-broker)
  if [ "$(id -u)" != 0 ]; then
    direct=()
    not_run "level zero: demo without the broker" "needs root: the test driver sends fds to its helper, which the kernel refuses \
another user while that demo has so many in flight"
  fi
  start "loader 1.20.6: demo" demo "$work/fdbroker" --max-fds 256 "${direct[@]}"
  start "loader 1.20.6: demo, imported fds left open" demo_open_fds "$work/fdbroker" --ranks 8 --buffers 50
fi

# capi PROGRAM: the cases that it prints, counted.
capi() {
  local status=0 log
  log=$(FDBROKERD=$target/fdbrokerd timeout "$part_limit_s" "$@" 2>&1) || status=$?
  echo "$log"
  echo "$(grep -c '^ok ' <<< "$log") passed, $(grep -c '^FAIL' <<< "$log") failed"
  return "$status"
}
if gcc -std=gnu11 -O1 -Wall -Wextra -Werror -Ilibclient/capi/include tests/capi/gpu.c -o "$work/gpu" -L"$target/capi" -lfdbroker \
  "-Wl,-rpath,$target/capi" -lpthread -ldl; then
  start "loader 1.8.12: C ABI" capi "$work/gpu" level-zero
  start "C ABI without a driver" capi env ZE_ENABLE_ALT_DRIVERS=/no/such/driver.so "$work/gpu" level-zero absent
  start "C ABI without a loader" capi env LD_LIBRARY_PATH="$work/no-loader" "$work/gpu" level-zero absent
  if [ -n "$newer" ]; then
    "$here/debian13.sh" "$work/gpu" "$work/gpu-newer" || give_up "no Debian 13 loader (see above)"
    start "loader 1.20.6: C ABI" capi env LD_LIBRARY_PATH="$target/capi" "$work/gpu-newer" level-zero
  fi
else
  give_up "tests/capi/gpu.c does not compile"
fi

# Few and small: here it counts that every byte is right.
start "handles between ranks of Open MPI" timeout "$part_limit_s" "$here/mpi.sh" openmpi 20 65536
start "handles between ranks of MPICH" timeout "$part_limit_s" "$here/mpi.sh" mpich 20 65536

start "UMF, unmodified" timeout "$part_limit_s" "$here/programs/run.sh" umf

start "bindings: made again, byte for byte" one timeout "$bindings_limit_s" libclient/level-zero-sys/regen.sh --check

collect
finish
