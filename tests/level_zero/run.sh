#!/bin/bash
# Runs the Level Zero bindings, the test driver, the library, the demo and fdbroker's layer under two real loaders and
# ends with `N passed, N failed`.
# It must never skip in silence: what cannot run here is named as not run, with its reason.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."

case ${1-} in
  '') ;;
  -h | --help)
    cat << 'HELP'
usage: tests/level_zero/run.sh

Loaders: 1.8.12, Debian 12's libze1 (spec 1.4: no zeMemPutIpcHandle), and 1.20.6, Debian 13's (spec 1.12), unpacked
into tests/level_zero/img. The driver is tests/level_zero/driver: no GPU is needed. With qemu the cases also run on real
dma-bufs (tests/vm). The checked-in bindings are made again and compared. As root it installs what is missing
(tests/install.sh). The library's cases (tests/level_zero/library) start the real daemon and separate
processes. Exit status: 0 when nothing failed, 77 when there is no such loader here (the last line says what to install).

By hand, one case or another program:
  ZE_ENABLE_ALT_DRIVERS=$PWD/target/debug/libfdbroker_ze_test_driver.so ZE_TEST_LOADER=1.8.12 \
    target/debug/ze-test-client memory_when_written_is_read_back
  ZE_ENABLE_ALT_DRIVERS=$PWD/target/debug/libfdbroker_ze_test_driver.so target/debug/fdbroker demo --memory level-zero
  ZE_ENABLE_ALT_DRIVERS=$PWD/target/debug/libfdbroker_ze_test_driver.so FDBROKER=$PWD/target/debug/fdbroker \
    target/debug/ze-test-library pointer_when_exported_twice_is_one_fd_at_the_broker
ZE_TEST_DRIVER_TRACE=yes shows every call; the other switches: tests/level_zero/driver/src/lib.rs.
HELP
    exit 0 ;;
  *) echo "tests/level_zero/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
finish() { echo "$passed passed, $failed failed"; [ "$failed" = 0 ]; exit; }
give_up() { echo "tests/level_zero/run.sh: $*" >&2; failed=$((failed + 1)); finish; }

# One run of everything takes seconds; a build of bindgen, once, minutes.
case_limit_s=300 bindings_limit_s=1500

# counted NAME COMMAND...: a part whose last line is `N passed, N failed`.
counted() {
  local name=$1 status=0 p f; shift
  echo "-- $name"
  "$@" > "$work/log" 2>&1 || status=$?
  grep -v '^ok ' "$work/log"
  if [ "$status" = 77 ]; then not_run "level zero: $name" "$(tail -n 1 "$work/log")"; return; fi
  read -r p f < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$work/log" | tail -n 1)
  # A part that died, or ran nothing, failed even when none of its cases said so.
  if [ "$status" != 0 ] && [ "${f:-0}" = 0 ] || [ "${p:-0}" = 0 ]; then f=$((${f:-0} + 1)); fi
  passed=$((passed + ${p:-0})) failed=$((failed + f))
}

# on_dma_bufs FILE... -- PROGRAM...: cases with exports that are real dma-bufs (udmabuf), in a virtual machine, together
# with FILEs: few hosts open that device.
on_dma_bufs() {
  local file arguments=() files=() driver=$optimised/libfdbroker_ze_test_driver.so
  while [ "$1" != -- ]; do files+=("$1"); shift; done
  shift
  for file in "$driver" "$optimised/ze-test-memory" "$libraries"/libze_{loader,tracing_layer}.so.1 "${files[@]}"; do
    arguments+=(-f "$file")
  done
  tests/vm/run.sh -t "$case_limit_s" "${arguments[@]}" -e LD_LIBRARY_PATH=/t -e ZE_TEST_LOADER=1.8.12 \
    -e "ZE_ENABLE_ALT_DRIVERS=/t/$(basename "$driver")" -e ZE_TEST_DRIVER_MEMORY=udmabuf \
    -e FDBROKER=/t/fdbroker -e ZE_TEST_FDBROKER=/t/fdbroker "$@"
}

# demo NAME COMMAND ARGUMENTS...: one case, every byte copied through the driver and checked.
demo() {
  echo "-- $1: demo"
  if timeout "$case_limit_s" tests/demo.sh "$2" demo --memory level-zero --json "${@:3}"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
  fi
}

# Without a driver, and without a loader, the demo says which; nothing else would do.
demo_refused() { # WORD COMMAND...
  local words
  echo "-- demo: an error that names $1"
  if words=$("${@:2}" demo --memory level-zero --json 2>&1 > /dev/null); then
    echo "the demo did not fail"; failed=$((failed + 1))
  elif [[ $words != *"$1"* ]]; then
    echo "no $1 in: $words"; failed=$((failed + 1))
  else
    passed=$((passed + 1))
  fi
}

libraries=/usr/lib/x86_64-linux-gnu
if [ "$(id -u)" = 0 ]; then tests/install.sh || give_up "the host is not ready (see above)"; fi
[ -e "$libraries/libze_loader.so.1" ] ||
  { echo "libze1 is not installed; run: sudo tests/install.sh"; exit 77; }
version=$(dpkg-query -W -f '${Version}' libze1 2> /dev/null)
[ "${version%-*}" = 1.8.12 ] ||
  { echo "libze1 here is ${version:-of no package}; the cases know 1.8.12: install Debian 12's"; exit 77; }

packages=(-p fdbroker -p fdbroker-ze-layer -p fdbroker-ze-test-driver -p fdbroker-ze-test-client -p fdbroker-ze-test-library)
cargo build --quiet "${packages[@]}" || give_up "the build failed"
target=$(realpath "${CARGO_TARGET_DIR:-target}")/debug
# In the virtual machine, whose processor is emulated, the others would take three times as long.
cargo build --release --quiet "${packages[@]}" || give_up "the optimised build failed"
optimised=$(dirname "$target")/release
export ZE_ENABLE_ALT_DRIVERS=$target/libfdbroker_ze_test_driver.so
# Nothing of the caller's shell may choose for the cases.
for variable in ${!ZE_TEST_DRIVER_@} ${!FDBROKER_@} LD_LIBRARY_PATH LD_PRELOAD; do
  [ "$variable" = FDBROKER_ZE_IMG ] || [ "$variable" = FDBROKER_VM_IMG ] || unset "$variable"
done
export FDBROKER=$target/fdbroker

echo "-- bindings: made again, byte for byte"
status=0
timeout "$bindings_limit_s" libclient/level-zero-sys/regen.sh --check 2> "$work/log" || status=$?
cat "$work/log"
case $status in
  0) passed=$((passed + 1)) ;;
  77) not_run "level zero: the bindings made again" "$(tail -n 1 "$work/log")" ;;
  *) failed=$((failed + 1)) ;;
esac

counted "loader 1.8.12" timeout "$case_limit_s" env ZE_TEST_LOADER=1.8.12 "$target/ze-test-client"
counted "loader 1.8.12: the library" timeout "$case_limit_s" "$target/ze-test-library"
counted "layer, loader 1.8.12" timeout "$case_limit_s" env ZE_TEST_LOADER=1.8.12 \
  "$here/layer.sh" "$target" "$target/ze-test-unmodified" "$target/ze-test-client"
demo "loader 1.8.12" "$FDBROKER"
demo_refused "no driver" env ZE_ENABLE_ALT_DRIVERS=/no/such/driver.so "$FDBROKER"
# A file of its name that is no library hides the system's loader.
mkdir "$work/no-loader" && : > "$work/no-loader/libze_loader.so.1"
demo_refused "libze_loader.so.1" env LD_LIBRARY_PATH="$work/no-loader" "$FDBROKER"

if command -v patchelf > /dev/null; then
  newer=(ze-test-client ze-test-unmodified ze-test-library fdbroker)
  ready=yes
  for program in "${newer[@]}"; do "$here/debian13.sh" "$target/$program" "$work/$program" || ready=''; done
  if [ -n "$ready" ]; then
    counted "loader 1.20.6" timeout "$case_limit_s" env ZE_TEST_LOADER=1.20.6 "$work/ze-test-client"
    counted "loader 1.20.6: the library" timeout "$case_limit_s" "$work/ze-test-library"
    counted "layer, loader 1.20.6" timeout "$case_limit_s" env ZE_TEST_LOADER=1.20.6 \
      "$here/layer.sh" "$target" "$work/ze-test-unmodified" "$work/ze-test-client"
    # With Put no fd stays behind: many more buffers than fds.
    demo "loader 1.20.6" "$work/fdbroker" --max-fds 256 --without-broker
    ZE_TEST_DRIVER_IMPORT_FD=caller-closes demo "loader 1.20.6, caller closes" "$work/fdbroker" --ranks 8 --buffers 50
  else
    failed=$((failed + 1))
  fi
else
  not_run "level zero: loader 1.20.6" "patchelf is not installed; run: sudo tests/install.sh"
fi
if command -v qemu-system-x86_64 > /dev/null || [ "$(id -u)" = 0 ]; then
  counted "loader 1.8.12 on real dma-bufs" on_dma_bufs -- "$optimised/ze-test-client"
  counted "loader 1.8.12 on real dma-bufs: the library" on_dma_bufs "$optimised/fdbroker" -- "$optimised/ze-test-library"
  counted "layer, loader 1.8.12, on real dma-bufs" on_dma_bufs "$optimised/libfdbroker_ze.so" "$optimised/ze-test-unmodified" \
    -- "$optimised/fdbroker" run --level-zero --max-fds 256 -- ./ze-test-unmodified broker
else
  not_run "level zero: real dma-bufs" "qemu is not installed; run: sudo tests/install.sh"
fi

finish
