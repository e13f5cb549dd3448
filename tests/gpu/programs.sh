# Finds or builds the programs of the GPU tests: FDBROKER_BIN_DIR has all of them, and `gpu` names the one of tests/gpu. Sourced by
# run.sh and multi.sh in the root of the repository. Must never build where FDBROKER_BIN_DIR is given.
# shellcheck shell=bash

if [ ! -e /dev/nvidiactl ]; then
  echo "$0: nothing can be run here: no /dev/nvidiactl, so no NVIDIA driver is loaded" >&2
  exit 5
fi
if [ -n "${FDBROKER_BIN_DIR-}" ]; then
  gpu=$FDBROKER_BIN_DIR/gpu
else
  cargo build --release --quiet -p fdbroker --bins --example gpu && cargo build --release --quiet -p fdbrokerd --bins || exit 1
  cargo build --release --quiet --lib -p fdbroker-cuda-layer -p fdbroker-capi || exit 1
  FDBROKER_BIN_DIR=${CARGO_TARGET_DIR:-target}/release
  libclient/capi/link.sh "$FDBROKER_BIN_DIR" && ln -sf capi/libfdbroker.so.0 "$FDBROKER_BIN_DIR/libfdbroker.so.0" || exit 1
  gpu=$FDBROKER_BIN_DIR/examples/gpu
fi
FDBROKER_BIN_DIR=$(readlink -f "$FDBROKER_BIN_DIR")
export FDBROKER_BIN_DIR

passed=0 failed=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT
# part NAME SECONDS COMMAND...: runs a program that ends with `N passed, N failed`, and counts. One that died, or that ran no check, has
# failed even when it did not say so. A process in a driver that hangs ignores SIGTERM.
part() {
  local name=$1 seconds=$2 status p f; shift 2
  printf '\n%s\n' "$name"
  timeout --kill-after=10 "$seconds" "$@" | tee "$out"
  status=${PIPESTATUS[0]}
  [ "$status" != 5 ] || exit 5
  read -r p f < <(awk '/^[0-9]+ passed, [0-9]+ failed$/ { p = $1; f = $3 } END { print p + 0, f + 0 }' "$out")
  if [ "$status" != 0 ] && [ "$f" = 0 ] || [ $((p + f)) = 0 ]; then f=$((f + 1)); echo "FAILED   $name: exit status $status"; fi
  passed=$((passed + p)) failed=$((failed + f))
}
# pytorch PARTS...: unmodified PyTorch, with the layer and directly.
pytorch() {
  if python3 -c 'import torch' 2> /dev/null; then
    part "PyTorch under the CUDA layer" 500 python3 tests/gpu/pytorch/run.py "$FDBROKER_BIN_DIR" "$@"
  else
    failed=$((failed + 1)); echo "FAILED   python3 has no PyTorch here (pip install torch)"
  fi
}
