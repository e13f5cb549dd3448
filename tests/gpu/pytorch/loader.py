"""A DataLoader whose four workers make tensors on the GPU: the same few segments are opened again with each tensor. Knows nothing
of fdbroker. Prints one line of JSON. Must never wait without a bound.
"""

import argparse
import os
import statistics
import time

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
os.environ["TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC"] = "1"

import torch  # noqa: E402: the variables above come first
import torch.multiprocessing.reductions as reductions  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from fds import limit_fds, nvidia_fds  # noqa: E402
from lines import say  # noqa: E402

PATIENCE_S = 90
WORKERS = 4
# Of a tensor: 4 MiB, several in each segment of 20 MiB.
ELEMENTS = 1 << 20


class Tensors(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return torch.full((ELEMENTS,), float(number), device="cuda")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fds", type=int, required=True, help="RLIMIT_NOFILE of each process")
    parser.add_argument("--tensors", type=int, default=1000, help="in each of two epochs, of which the second is timed")
    args = parser.parse_args()
    limit_fds(args.fds)
    torch.zeros(1, device="cuda")
    before, opens, frees, wrong, most_fds = nvidia_fds(), [], [], 0, 0
    rebuild = reductions.rebuild_cuda_tensor

    def timed(*arguments):
        begin = time.perf_counter()
        tensor = rebuild(*arguments)
        opens.append((time.perf_counter() - begin) * 1e6)
        return tensor

    # A pickle names the function.
    reductions.rebuild_cuda_tensor = timed
    loader = DataLoader(Tensors(args.tensors), batch_size=None, num_workers=WORKERS, persistent_workers=True,
                        multiprocessing_context="spawn", timeout=PATIENCE_S)
    for _ in range(2):
        opens.clear()
        frees.clear()
        seen, begin = 0, time.perf_counter()
        # Not by enumerate(), which would keep the last one.
        for tensor in loader:
            wrong += not bool((tensor == seen).all())
            seen += 1
            freed = time.perf_counter()
            # The last name of it: its segments are closed here.
            tensor = None
            frees.append((time.perf_counter() - freed) * 1e6)
            most_fds = max(most_fds, nvidia_fds() - before) if seen % 100 == 1 else most_fds
        seconds = time.perf_counter() - begin
    figures = {"open_us": round(statistics.median(opens), 1), "free_us": round(statistics.median(frees), 1), "seconds": round(seconds, 3)}
    opened = 2 * len(opens)
    del loader
    say({"role": "loader", "wrong": wrong, "seen": seen, "opened": opened, **figures, "new_nvidia_fds": most_fds})
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
