#!/bin/bash
# Runs what needs several GPUs of one machine: memory of one opened on the other by handle, or by who sees one alone, then NCCL, NVSHMEM, symmetric
# memory, training and tensors across GPUs under the CUDA layer and directly. Ends with `N passed, N failed`. Must never make a multicast object: that
# can put the GPUs of a shared host out of service.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

case ${1-} in
  '' | malloc) ;;
  -h | --help)
    cat << 'HELP'
usage: tests/gpu/multi.sh [malloc]

Needs two NVIDIA GPUs with their driver, PyTorch with NCCL in python3, and some eight minutes; of four or more GPUs it takes four.
FDBROKER_BIN_DIR names a directory with the programs, built before (tests/gpu/README.md); without it they are built here. What this
machine lacks is named by a line `not run: PART: REASON`, and counts as nothing. `tests/gpu/pytorch/run.py DIR --gpus N --part PART` runs
one part of PyTorch alone: malloc-devices, nccl, symmetric, across, windows, nvshmem, ddp, fsdp, names.

Exit status: 0 nothing failed; 1 something failed; 2 usage; 5 no two GPUs here.
HELP
    exit 0 ;;
  *) echo "tests/gpu/multi.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

count=$(nvidia-smi --list-gpus 2> /dev/null | wc -l)
if [ "$count" -lt 2 ]; then
  echo "tests/gpu/multi.sh: nothing can be run here: $count GPUs with a driver, and two are needed" >&2
  exit 5
fi
. tests/gpu/programs.sh
gpus=2
if [ "$count" -ge 4 ]; then gpus=4; else echo "not run: PyTorch on four GPUs: there are $count"; fi
# Memory of cudaMalloc: who reaches it, copies between devices, NCCL without its cuMem; `malloc` does this alone.
malloc() {
  part "memory of cudaMalloc on $gpus GPUs" 200 python3 tests/gpu/malloc.py "$FDBROKER_BIN_DIR" --gpus "$gpus"
  pytorch --gpus "$gpus" --part malloc-devices
}
if [ "${1-}" = malloc ]; then
  malloc
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
  exit
fi
part "memory of another device" 120 "$gpu" devices
# A trainer sees both GPUs, and each of two engines one of them.
part "GPUs that a process does not see" 120 env "FDBROKER_LIBRARY=$FDBROKER_BIN_DIR/libfdbroker.so.0" \
  PYTHONPATH=libclient/python python3 tests/gpu/hidden.py
pytorch --gpus "$gpus" --part nccl --part symmetric --part across --part windows --part nvshmem --part ddp --part fsdp --part names
malloc

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
