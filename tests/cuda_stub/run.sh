#!/bin/bash
# Runs what needs CUDA on a machine without a GPU, against a stand-in for the driver (libcuda.c): the program of tests/gpu, the
# demo, the C ABI, and C programs that know nothing of fdbroker and share memory as PyTorch, NCCL and UCX do, each bare and under
# the CUDA layer. Must never be taken for a test of CUDA: its figures mean nothing.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."

case ${1-} in
  '') ;;
  -h | --help)
    echo "usage: tests/cuda_stub/run.sh      (no options; CC names another compiler)"; exit 0 ;;
  *) echo "tests/cuda_stub/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

FDBROKER_BIN_DIR=$(tests/programs.py) || exit 1
export FDBROKER_BIN_DIR
cc=${CC:-cc}
# No variable of the caller's shell may hide a GPU.
unset CUDA_VISIBLE_DEVICES ${!FDBROKER_CUDA_STUB_@}

work=$(mktemp -d)
memory=$(mktemp -d -p /dev/shm fdbroker-cuda-stub-XXXXXX)
trap 'rm -rf "$work" "$memory"' EXIT
. "$here/../common/checks.sh"
"$cc" -shared -fPIC -O2 -o "$work/libcuda.so.1" "$here/libcuda.c" || exit 1
# The "device memory" is a file system of our own where that can be mounted: other programs change the free bytes of /dev/shm.
private=()
if unshare --mount mount -t tmpfs none "$memory" 2> /dev/null; then
  private=(unshare --mount sh -c 'mount -t tmpfs -o size=8g none "$0" && exec "$@"' "$memory")
fi
# The stand-in is loaded as the driver, and before libc, so that the broker sees its fds as the driver's.
under_stub() {
  "${private[@]}" env LD_LIBRARY_PATH="$work" LD_PRELOAD="$work/libcuda.so.1" FDBROKER_CUDA_STUB_DIR="$memory" timeout --kill-after=10 "$@"
}

# count STATUS PASSED FAILED NAME: a program that ended badly, or that printed no result, has failed.
count() {
  local status=$1 p=$2 f=$3 name=$4
  if [ "$status" != 0 ] && [ "$f" = 0 ] || [ $((p + f)) = 0 ]; then f=1; echo "FAIL  $name: exit status $status"; fi
  passed=$((passed + p)) failed=$((failed + f))
}

# gpu ENVIRONMENT... -- ARGUMENTS...: runs the program of tests/gpu and counts its checks.
gpu() {
  local environment=() status=0 p f
  while [ "$1" != -- ]; do environment+=("$1"); shift; done
  shift
  under_stub 320 env "${environment[@]}" "$FDBROKER_BIN_DIR/examples/gpu" "$@" > "$work/out" || status=$?
  grep -v '^{' "$work/out"
  read -r p f < <(awk '/^[0-9]+ passed, [0-9]+ failed$/ { p = $1; f = $3 } END { print p + 0, f + 0 }' "$work/out")
  count "$status" "$p" "$f" "the program of tests/gpu $*"
}
gpu --
gpu FDBROKER_CUDA_STUB_DEVICES=3 -- devices
gpu FDBROKER_CUDA_STUB_DEVICES=3 FDBROKER_CUDA_STUB_NO_PEERS=1 -- devices-apart

# python NAME [VARIABLE=VALUE]... PROGRAM [ARGUMENT]...: runs a program of tests/gpu in Python and counts its checks.
python() {
  local name=$1 status=0 p f; shift
  under_stub 120 env FDBROKER_CUDA_STUB_DEVICES=2 "FDBROKER_LIBRARY=$FDBROKER_BIN_DIR/capi/libfdbroker.so.0" PYTHONPATH=libclient/python \
    "$@" > "$work/out" || status=$?
  cat "$work/out"
  read -r p f < <(awk '/^[0-9]+ passed, [0-9]+ failed$/ { p = $1; f = $3 } END { print p + 0, f + 0 }' "$work/out")
  count "$status" "$p" "$f" "$name"
}
# A trainer that sees two GPUs, and engines that see one each.
python "GPUs that a process does not see" python3 tests/gpu/hidden.py
python "GPUs that a process does not see, no peers" FDBROKER_CUDA_STUB_NO_PEERS=1 python3 tests/gpu/hidden.py
# What the driver says of memory of cudaMalloc, with the layer and without it.
python "memory of cudaMalloc" FDBROKER_CUDA_STUB_BYTES=1073741824 python3 tests/gpu/malloc.py "$FDBROKER_BIN_DIR" --facts
python "memory of cudaMalloc, two GPUs" FDBROKER_CUDA_STUB_BYTES=1073741824 python3 tests/gpu/malloc.py "$FDBROKER_BIN_DIR" --facts --gpus 2

demo=("$FDBROKER_BIN_DIR/fdbroker" demo --memory cuda --ranks 4 --buffers 50 --timeout 60 --without-broker --json)
if under_stub 150 tests/demo.sh "${demo[@]}"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi

. "$here/shapes.sh"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
