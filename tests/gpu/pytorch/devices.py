"""PyTorch on several GPUs of one machine, a process on each: NCCL, symmetric memory, training, or tensors of one GPU that another
process takes to its own. Knows nothing of fdbroker, but for the part `names`. Prints one line of JSON for each rank. Must never wait without a bound.
"""

import argparse
import datetime
import faulthandler
import os
import statistics
import subprocess
import sys
import tempfile
import time

from fds import limit_fds, nvidia_fds
from lines import say

# The longest wait for another process: loading PyTorch and NCCL takes seconds.
PATIENCE_S = 120
# Of the tensors: 256 MiB, which NCCL sends at full speed.
ELEMENTS = 1 << 26
ROUNDS = 20
# Tensors of one GPU that the other one's process takes.
TENSORS = 32
STRIDE = 4097
# What takes longer hangs, and says where.
HANG_S = 100
# A rank that has failed leaves the others waiting.
MOMENT_S = 5
GROUPS = ["nccl", "symmetric", "windows", "nvshmem", "ddp", "fsdp", "names"]


def median_us(call, torch):
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e6)
    return round(statistics.median(times))


def nccl(torch, dist, rank, size):
    """all_reduce and all_to_all; how many results are wrong, and how long they take."""
    values = torch.full((ELEMENTS,), float(rank + 1), device="cuda")
    dist.all_reduce(values)
    wrong = not bool((values == sum(range(1, size + 1))).all())
    sent = torch.cat([torch.full((ELEMENTS // size,), float(rank * size + to), device="cuda") for to in range(size)])
    taken = torch.empty_like(sent)
    dist.all_to_all_single(taken, sent)
    for place, part in enumerate(taken.chunk(size)):
        wrong += not bool((part == place * size + rank).all())
    return wrong, {
        "all_reduce_us": median_us(lambda: dist.all_reduce(values), torch),
        "all_to_all_us": median_us(lambda: dist.all_to_all_single(taken, sent), torch),
    }


def symmetric(torch, dist, rank, size):
    """Each rank reads its neighbour's buffer, then writes into it."""
    import torch.distributed._symmetric_memory as memory

    own = memory.empty(ELEMENTS, dtype=torch.float32, device=f"cuda:{rank}")
    begin = time.perf_counter()
    handle = memory.rendezvous(own, dist.group.WORLD.group_name)
    rendezvous_us = round((time.perf_counter() - begin) * 1e6)
    own.fill_(float(rank + 1))
    torch.cuda.synchronize()
    dist.barrier()
    neighbour = (rank + 1) % size
    peer = handle.get_buffer(neighbour, (ELEMENTS,), torch.float32)
    wrong = not bool((peer == neighbour + 1).all())
    copied = torch.empty_like(own)
    copy_us = median_us(lambda: copied.copy_(peer), torch)
    dist.barrier()
    peer[:STRIDE] = -float(rank + 1)
    torch.cuda.synchronize()
    dist.barrier()
    before = (rank - 1) % size
    wrong += not bool((own[:STRIDE] == -float(before + 1)).all() and (own[STRIDE:] == rank + 1).all())
    return wrong, {"rendezvous_us": rendezvous_us, "copy_us": copy_us}


def part(what):
    """A function that answers how many results are wrong, with figures, or None with the reason why it was not run."""
    import buffers
    import names
    import training

    here = {"nccl": nccl, "symmetric": symmetric, "names": names.names}
    return here.get(what) or getattr(buffers, what, None) or getattr(training, what)


def group(args):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(args.rank)
    torch.zeros(1, device="cuda")
    before = nvidia_fds()
    dist.init_process_group(
        "nccl", init_method=f"file://{args.folder}/store", rank=args.rank, world_size=args.size,
        device_id=torch.device("cuda", args.rank), timeout=datetime.timedelta(seconds=PATIENCE_S))
    wrong, found = part(args.what)(torch, dist, args.rank, args.size)
    if wrong is None:
        say({"role": "device", "rank": args.rank, "not_run": found})
    else:
        report(args.rank, wrong, found, nvidia_fds() - before)
    dist.barrier()
    dist.destroy_process_group()
    return wrong


def report(rank, wrong, figures, fds):
    say({"role": "device", "rank": rank, "wrong": int(wrong), **figures, "new_nvidia_fds": fds})


def take(index, fds, tasks, answers):
    """A worker on a GPU of its own takes tensors of the first one."""
    import torch

    limit_fds(fds)
    torch.cuda.set_device(index)
    torch.zeros(1, device="cuda")
    answers.put(True)
    for number, tensor in iter(lambda: tasks.get(timeout=PATIENCE_S), None):
        here = tensor.to(f"cuda:{index}")
        is_right = bool((here[::STRIDE] == number).all())
        tensor[index].copy_(-here[0])
        torch.cuda.synchronize()
        del tensor, here
        answers.put(is_right)


def across(args):
    """torch.multiprocessing's queues: tensors of the first GPU, workers on the others."""
    import torch
    import torch.multiprocessing as mp

    torch.zeros(1, device="cuda:0")
    before = nvidia_fds()
    context = mp.get_context("spawn")
    answers = context.Queue()
    queues = {index: context.Queue() for index in range(1, args.size)}
    workers = [context.Process(target=take, args=(index, args.fds, queue, answers)) for index, queue in queues.items()]
    for worker in workers:
        worker.start()
    for _ in workers:
        answers.get(timeout=PATIENCE_S)
    wrong, times = 0, []
    for number in range(1, TENSORS + 1):
        tensor = torch.full((ELEMENTS // 2,), float(number), device="cuda:0")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for queue in queues.values():
            queue.put((number, tensor))
        for _ in queues:
            wrong += not answers.get(timeout=PATIENCE_S)
        times.append((time.perf_counter() - begin) * 1e6)
        wrong += sum(float(tensor[index]) != -number for index in queues)
    for queue in queues.values():
        queue.put(None)
    for worker in workers:
        worker.join(PATIENCE_S)
        wrong += worker.exitcode != 0
    report(0, wrong, {"tensor_us": round(statistics.median(times))}, nvidia_fds() - before)
    return wrong


def start(args):
    """A process for each GPU; torch reads its settings when it is loaded."""
    is_on = args.expandable == "on"
    settings = {name: f"expandable_segments:{is_on}" for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
    # Multicast objects can put the GPUs of a shared host out of service.
    settings |= {"TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC": "1", "NCCL_CUMEM_ENABLE": "1",
                 "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1",
                 "NVSHMEM_REMOTE_TRANSPORT": "none", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *sys.argv[1:], "--folder", folder]
        ranks = 1 if args.what == "across" else args.size
        processes = [subprocess.Popen([*command, "--rank", str(rank)], env={**os.environ, **settings})
                     for rank in range(ranks)]
        return ended(processes)


def ended(processes):
    """Whether all end well. After one that does not the others have a moment."""
    until = time.monotonic() + 2 * PATIENCE_S
    while any(process.poll() is None for process in processes) and time.monotonic() < until:
        if any(process.returncode for process in processes):
            until = min(until, time.monotonic() + MOMENT_S)
        time.sleep(0.02)
    for rank, process in enumerate(processes):
        if process.poll() is None:
            process.kill()
        if process.wait():
            print(f"rank {rank} has ended with {process.returncode}", file=sys.stderr)
    return all(process.returncode == 0 for process in processes)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--what", choices=[*GROUPS, "across"], required=True)
    parser.add_argument("--expandable", choices=["on", "off"], required=True, help="expandable segments")
    parser.add_argument("--size", type=int, default=2, help="GPUs")
    parser.add_argument("--fds", type=int, required=True, help="RLIMIT_NOFILE of each process")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    limit_fds(args.fds)
    faulthandler.dump_traceback_later(HANG_S)
    if args.rank is None:
        return 0 if start(args) else 1
    wrong = across(args) if args.what == "across" else group(args)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
