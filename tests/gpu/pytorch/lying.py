"""A tensor of PyTorch's default allocator, shared by handle where it lies (fdbroker.torch.share): another process opens it and leaves a
mark. Prints one line of JSON. Must never copy: the mark would not be seen.
"""

import argparse
import pickle
import subprocess
import sys
import time

from fds import limit_fds
from lines import say

import torch

import fdbroker
import fdbroker.torch

# Of 4 bytes, from the one that is shared on; the one that is marked.
ELEMENTS, FIRST, MARK = 8 << 20, 1024, 5
PATIENCE_S = 60


def read():
    with fdbroker.connect() as broker:
        tensor = fdbroker.torch.open(pickle.load(sys.stdin.buffer), broker)
        wrong = tensor.numel() != ELEMENTS - FIRST or not bool((tensor == 7).all())
        tensor[MARK] = -1
        torch.cuda.synchronize()
        del tensor
    return int(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fds", type=int, default=1024, help="RLIMIT_NOFILE of this process")
    parser.add_argument("--reader", action="store_true", help="the second process")
    args = parser.parse_args()
    limit_fds(args.fds)
    if args.reader:
        return read()
    tensor = torch.full((ELEMENTS,), 7.0, device="cuda")
    torch.cuda.synchronize()
    with fdbroker.connect() as broker:
        begin = time.perf_counter()
        shared = fdbroker.torch.share(tensor[FIRST:], broker)
        share_us = round((time.perf_counter() - begin) * 1e6)
        reader = subprocess.run([sys.executable, __file__, "--reader"], input=pickle.dumps(shared), timeout=PATIENCE_S)
        wrong = reader.returncode + int(float(tensor[FIRST + MARK]) != -1)
        say({"role": "lying", "wrong": wrong, "share_us": share_us})
    return 0


if __name__ == "__main__":
    sys.exit(main())
