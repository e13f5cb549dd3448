#!/bin/bash
# Runs the CUDA backend on a real GPU: the checks and figures of tests/gpu, then the demo with device memory. Ends with
# `N passed, N failed`. Must never pass for want of a GPU: without one it says what is missing and ends with status 5.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

case ${1-} in
  '') ;;
  -h | --help)
    cat << 'HELP'
usage: tests/gpu/run.sh

Needs an NVIDIA GPU with its driver (libcuda.so.1, CUDA 11.0 or later), PyTorch in python3, 70 GiB of free device memory, root
for namespaces of processes, and some five minutes. FDBROKER_BIN_DIR names a directory with the programs, built before
(tests/gpu/README.md); without it they are built here. Prints each check, then a table of figures, then the same figures as
JSON lines; then what PyTorch does under the CUDA layer and without it (tests/gpu/pytorch/run.py alone does that part).

Exit status: 0 nothing failed; 1 something failed; 2 usage; 5 no GPU here.
HELP
    exit 0 ;;
  *) echo "tests/gpu/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

if [ ! -e /dev/nvidiactl ]; then
  echo "tests/gpu/run.sh: nothing can be run here: no /dev/nvidiactl, so no NVIDIA driver is loaded" >&2
  exit 5
fi

if [ -n "${FDBROKER_BIN_DIR-}" ]; then
  gpu=$FDBROKER_BIN_DIR/gpu
else
  cargo build --release --quiet -p fdbroker --bins --example gpu || exit 1
  cargo build --release --quiet --lib -p fdbroker-cuda-layer -p fdbroker-capi || exit 1
  FDBROKER_BIN_DIR=${CARGO_TARGET_DIR:-target}/release
  libclient/capi/link.sh "$FDBROKER_BIN_DIR" && ln -sf capi/libfdbroker.so.0 "$FDBROKER_BIN_DIR/libfdbroker.so.0" || exit 1
  gpu=$FDBROKER_BIN_DIR/examples/gpu
fi
FDBROKER_BIN_DIR=$(readlink -f "$FDBROKER_BIN_DIR")
export FDBROKER_BIN_DIR

out=$(mktemp)
trap 'rm -f "$out"' EXIT
# A process in a driver that hangs ignores SIGTERM.
timeout --kill-after=10 320 "$gpu" | tee "$out"
status=${PIPESTATUS[0]}
[ "$status" = 5 ] && exit 5
read -r passed failed < <(awk '/^[0-9]+ passed, [0-9]+ failed$/ { p = $1; f = $3 } END { print p + 0, f + 0 }' "$out")
# A program that died, or that ran no check, has failed even when it did not say so.
if [ "$status" != 0 ] && [ "$failed" = 0 ] || [ $((passed + failed)) = 0 ]; then failed=$((failed + 1)); fi

printf '\nfdbroker demo --memory cuda\n'
if timeout --kill-after=10 150 tests/demo.sh "$FDBROKER_BIN_DIR/fdbroker" demo --memory cuda --ranks 8 --buffers 50 --timeout 60 \
  --without-broker --json; then
  passed=$((passed + 1)); echo "ok       the demo with device memory"
else
  failed=$((failed + 1)); echo "FAILED   the demo with device memory"
fi

printf '\nPyTorch under the CUDA layer\n'
if python3 -c 'import torch' 2> /dev/null; then
  timeout --kill-after=10 500 python3 tests/gpu/pytorch/run.py "$FDBROKER_BIN_DIR" | tee "$out"
  read -r p f < <(awk '/^[0-9]+ passed, [0-9]+ failed$/ { p = $1; f = $3 } END { print p + 0, f + 0 }' "$out")
  [ $((p + f)) != 0 ] || f=1
  passed=$((passed + p)) failed=$((failed + f))
else
  failed=$((failed + 1)); echo "FAILED   python3 has no PyTorch here (pip install torch)"
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
