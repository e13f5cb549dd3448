"""torch.multiprocessing as its users' programs use it: eight workers get tensors by queues while the parent's expandable
segments grow and are trimmed. Knows nothing of fdbroker. Prints one line of JSON. Must never wait without a bound.
"""

import argparse
import os
import random
import time

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
os.environ["TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC"] = "1"

import torch  # noqa: E402: the variables above come first
import torch.multiprocessing as mp  # noqa: E402

from fds import limit_fds, nvidia_fds  # noqa: E402
from lines import say  # noqa: E402
from rank import MARKS, PATIENCE_S, STRIDE  # noqa: E402

SIZES_MIB = (3, 20, 45, 130, 410)
TENSORS = 12


def work(index, fds, tasks, answers):
    limit_fds(fds)
    torch.zeros(1, device="cuda")
    answers.put(("ready", index, True))
    for number, tensor in iter(lambda: tasks.get(timeout=PATIENCE_S), None):
        is_right = bool((tensor[::STRIDE] == number).all())
        tensor[MARKS + index] = -number
        torch.cuda.synchronize()
        del tensor
        answers.put((number, index, is_right))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--fds", type=int, required=True, help="RLIMIT_NOFILE of each process")
    args = parser.parse_args()
    limit_fds(args.fds)
    torch.zeros(1, device="cuda")
    before = nvidia_fds()
    context = mp.get_context("spawn")
    answers = context.Queue()
    queues = [context.Queue() for _ in range(args.workers)]
    workers = [
        context.Process(target=work, args=(index, args.fds, queue, answers))
        for index, queue in enumerate(queues)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        answers.get(timeout=PATIENCE_S)
    choose = random.Random(7)
    held, wrong, sent, begin = {}, 0, 0, time.perf_counter()
    for round_number in range(args.rounds):
        while len(held) < TENSORS:
            number = sent = sent + 1
            held[number] = torch.full((choose.choice(SIZES_MIB) << 18,), float(number), device="cuda")
        torch.cuda.synchronize()
        for number, tensor in held.items():
            for queue in queues:
                queue.put((number, tensor))
        for _ in range(len(held) * args.workers):
            number, index, is_right = answers.get(timeout=PATIENCE_S)
            wrong += not is_right
        for number, tensor in held.items():
            wrong += sum(float(tensor[MARKS + index]) != -number for index in range(args.workers))
            tensor.fill_(float(number))
        for number in choose.sample(sorted(held), TENSORS // 2):
            del held[number]
        # The name would keep the last one.
        tensor = None
        if round_number % 3 == 2:
            torch.cuda.ipc_collect()
            torch.cuda.empty_cache()
    seconds = time.perf_counter() - begin
    for queue in queues:
        queue.put(None)
    for worker in workers:
        worker.join(PATIENCE_S)
    codes = [worker.exitcode for worker in workers]
    report = {"role": "workers", "sent": sent, "wrong": wrong, "exit": codes, "seconds": round(seconds, 2)}
    say({**report, "new_nvidia_fds": nvidia_fds() - before})
    return 1 if wrong or any(codes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
