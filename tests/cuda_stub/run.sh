#!/bin/bash
# Runs the program of tests/gpu and the demo without a GPU, against a stand-in for the driver (libcuda.c). Shows that the
# library, the broker and the program work together. Must never be taken for a test of CUDA: its figures mean nothing.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

case ${1-} in
  '') ;;
  -h | --help)
    echo "usage: tests/cuda_stub/run.sh      (no options)"; exit 0 ;;
  *) echo "tests/cuda_stub/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

FDBROKER_BIN_DIR=$(tests/programs.py) || exit 1
export FDBROKER_BIN_DIR

work=$(mktemp -d)
memory=$(mktemp -d -p /dev/shm fdbroker-cuda-stub-XXXXXX)
trap 'rm -rf "$work" "$memory"' EXIT
cc -shared -fPIC -O2 -o "$work/libcuda.so.1" tests/cuda_stub/libcuda.c || exit 1
# The "device memory" is a file system of our own where that can be mounted: other programs change the free bytes of /dev/shm.
private=()
if unshare --mount mount -t tmpfs none "$memory" 2> /dev/null; then
  private=(unshare --mount sh -c 'mount -t tmpfs -o size=8g none "$0" && exec "$@"' "$memory")
fi
# The stand-in is loaded as the driver, and before libc, so that the broker sees its fds as the driver's.
under_stub() {
  "${private[@]}" env LD_LIBRARY_PATH="$work" LD_PRELOAD="$work/libcuda.so.1" FDBROKER_CUDA_STUB_DIR="$memory" timeout --kill-after=10 "$@"
}

under_stub 320 "$FDBROKER_BIN_DIR/examples/gpu" > "$work/out"
status=$?
grep -v '^{' "$work/out"
read -r passed failed < <(awk '/^[0-9]+ passed, [0-9]+ failed$/ { p = $1; f = $3 } END { print p + 0, f + 0 }' "$work/out")
if [ "$status" != 0 ] && [ "$failed" = 0 ] || [ $((passed + failed)) = 0 ]; then failed=$((failed + 1)); fi

if under_stub 150 tests/demo.sh "$FDBROKER_BIN_DIR/fdbroker" demo --memory cuda --ranks 4 --buffers 50 --timeout 60 --without-broker --json; then
  passed=$((passed + 1))
else
  failed=$((failed + 1))
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
