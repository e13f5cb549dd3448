#!/bin/bash
# Runs the CUDA backend on a real GPU: the checks and figures of tests/gpu, then the demo with device memory. Ends with
# `N passed, N failed`. Must never pass for want of a GPU: without one it says what is missing and ends with status 5.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

case ${1-} in
  '' | library | pytorch | malloc | weights)
    [ $# -le 1 ] || { echo "tests/gpu/run.sh: too many arguments (--help explains)" >&2; exit 2; } ;;
  objects)
    [ $# -le 2 ] || { echo "tests/gpu/run.sh: too many arguments (--help explains)" >&2; exit 2; } ;;
  -h | --help)
    cat << 'HELP'
usage: tests/gpu/run.sh [library | pytorch | malloc | weights | objects [MIB]]

Needs an NVIDIA GPU with its driver (libcuda.so.1, CUDA 11.0 or later), PyTorch in python3, 70 GiB of free device memory, root
for namespaces of processes, and some thirteen minutes; each part alone takes less than ten. FDBROKER_BIN_DIR names a directory with the programs, built before
(tests/gpu/README.md); without it they are built here. Prints each check, then a table of figures, then the same figures as
JSON lines. What this machine lacks is named by a line `not run: PART: REASON`, and counts as nothing. The parts:

  library   the CUDA backend, the demo, the C ABI and the Python package
  pytorch   PyTorch, a DataLoader, sleep and checkpoints under the CUDA layer and without it, brokers that are killed, weights by name
            (tests/gpu/pytorch/run.py does this, too; its --part one of it)
  malloc    cudaMalloc and CUDA's IPC calls: what the driver says with the layer and without it, row by row, times beside each other, and
            PyTorch's default allocator
  weights   of `library` a safetensors file by load_safetensors, beside safetensors' own loading (a plain reader where it is missing)
  objects   of `library` named objects alone, with MIB of named weights (32768, or half of a small device), in 100 s at most, without PyTorch

Exit status: 0 nothing failed; 1 something failed; 2 usage; 5 no GPU here.
HELP
    exit 0 ;;
  *) echo "tests/gpu/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

. tests/gpu/programs.sh
# Memory of cudaMalloc and CUDA's own IPC calls.
malloc() {
  part "memory of cudaMalloc" 300 python3 tests/gpu/malloc.py "$FDBROKER_BIN_DIR"
  pytorch --gib 24 --part malloc
}
# Counts the cases that a C program prints.
capi() {
  local status=0
  FDBROKERD=$FDBROKER_BIN_DIR/fdbrokerd FDBROKER=$FDBROKER_BIN_DIR/fdbroker LD_LIBRARY_PATH="$FDBROKER_BIN_DIR/capi:$FDBROKER_BIN_DIR" \
    "$FDBROKER_BIN_DIR/capi-gpu" cuda > "$out.capi" 2>&1 || status=$?
  cat "$out.capi"
  echo "$(grep -c '^ok ' "$out.capi") passed, $(grep -c '^FAIL' "$out.capi") failed"
  rm -f "$out.capi"
  return "$status"
}
export -f capi
export out
library() {
  local library allocator
  part "the CUDA backend" 320 "$gpu"

  printf '\nfdbroker demo --memory cuda\n'
  if timeout --kill-after=10 150 tests/demo.sh "$FDBROKER_BIN_DIR/fdbroker" demo --memory cuda --ranks 8 --buffers 50 --timeout 60 \
    --without-broker --json; then
    passed=$((passed + 1)); echo "ok       the demo with device memory"
  else
    failed=$((failed + 1)); echo "FAILED   the demo with device memory"
  fi

  part "the C ABI" 200 bash -c capi

  # The Python package in place: memory, tensors, pools, with PyTorch's two ways to allocate.
  library=$FDBROKER_BIN_DIR/capi/libfdbroker.so.0
  [ -e "$library" ] || library=$FDBROKER_BIN_DIR/libfdbroker.so.0
  for allocator in "" expandable_segments:True; do
    part "Python, PYTORCH_CUDA_ALLOC_CONF=$allocator" 200 env "PYTORCH_CUDA_ALLOC_CONF=$allocator" "FDBROKER_LIBRARY=$library" \
      PYTHONPATH=libclient/python python3 libclient/python/tests/run.py test_torch test_gpu
  done
  part "Python, CuPy and JAX" 150 env "FDBROKER_LIBRARY=$library" PYTHONPATH=libclient/python python3 libclient/python/tests/run.py test_arrays
  # The examples as a user runs them.
  part "Python examples on the GPU" 150 env "FDBROKER_LIBRARY=$library" PYTHONPATH=libclient/python "FDBROKER_TEST_DOCUMENTS=$PWD" \
    FDBROKER_TEST_DEVICE=cuda python3 libclient/python/tests/run.py ExamplesOnGpu
  # A state dict by one name, beside torch.multiprocessing.
  part "state dicts" 160 env "FDBROKER_LIBRARY=$library" PYTHONPATH=libclient/python python3 tests/gpu/states.py
  weights
}
# A safetensors file, beside what a program does without a broker.
weights() {
  local library=$FDBROKER_BIN_DIR/capi/libfdbroker.so.0
  [ -e "$library" ] || library=$FDBROKER_BIN_DIR/libfdbroker.so.0
  part "weights" 220 env "FDBROKER_LIBRARY=$library" PYTHONPATH=libclient/python python3 tests/gpu/weights.py
}

case ${1-} in
  '') library; pytorch; malloc ;;
  objects) part "named objects" 100 "$gpu" "$@" ;;
  *) "$1" ;;
esac
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
