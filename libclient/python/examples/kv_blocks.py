"""Blocks of a KV cache, handed from a prefill process to a decode process by handles of 64 bytes, and back.

    python kv_blocks.py                 # numpy, on the host
    python kv_blocks.py --device cuda   # PyTorch: the blocks stay on the GPU

It starts a broker of its own, checks each number, and ends by itself. Must never use a block that the other process has.
"""

import argparse
import multiprocessing
from typing import Any, Dict, List

import fdbroker

#: Keys and values, tokens, heads, numbers of a head.
BLOCK = (2, 16, 8, 64)
BLOCK_BYTES = 2 * 16 * 8 * 64 * 2
BLOCKS, BLOCKS_OF_A_REQUEST, REQUESTS = 8, 3, 6
#: Seconds that only a hang exceeds.
LIMIT_S = 60


def as_array(memory: fdbroker.Memory, device: str) -> Any:
    """The memory as a numpy array or as a tensor, without a copy."""
    if device == "cpu":
        return memory.numpy()
    import torch

    return torch.from_dlpack(memory)


def finish(device: str) -> None:
    """Waits for the GPU: the other process sees nothing of this one's streams."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)


def content(request: int, number: int, device: str) -> Any:
    """Block `number` of a request, computed: the token at place 15 of the last one is for the decoder to fill in."""
    count = BLOCK_BYTES // 2
    if device == "cpu":
        import numpy

        return (numpy.arange(count) % 1000 + 10 * request + number).astype("float16").reshape(BLOCK)
    import torch

    return (torch.arange(count, device=device) % 1000 + 10 * request + number).to(torch.float16).view(BLOCK)


def decode(socket: str, device: str, requests: Any, finished: Any) -> None:
    """The decode process: opens the blocks of a request where they are, appends a token, and hands the blocks back."""
    with fdbroker.connect(socket) as broker:
        for request, handles in iter(lambda: requests.get(timeout=LIMIT_S), None):
            for number, handle in enumerate(handles):
                with broker.open(handle, BLOCK, "float16", writable=True) as memory:
                    block = as_array(memory, device)
                    assert (block == content(request, number, device)).all(), f"request {request}: block {number} is wrong"
                    if number == len(handles) - 1:
                        block[:, -1] = -request
                    finish(device)
            print(f"decode: request {request}, {len(handles)} blocks are right, one token appended", flush=True)
            finished.put(request)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, or cuda or cuda:N with PyTorch")
    device = parser.parse_args().device
    context = multiprocessing.get_context("spawn")
    requests, finished = context.Queue(), context.Queue()
    with fdbroker.private_broker(max_fds=64) as broker:
        decoder = context.Process(target=decode, args=(broker.socket, device, requests, finished), daemon=True)
        decoder.start()
        # One allocation for all blocks: its processes have one mapping, however many blocks there are.
        cache = broker.empty((BLOCKS, *BLOCK), "float16", device=device)
        blocks, free = as_array(cache, device), list(range(BLOCKS))
        tables: Dict[int, List[int]] = {}

        def take_back() -> None:
            request = finished.get(timeout=LIMIT_S)
            table = tables.pop(request)
            expected = content(request, len(table) - 1, device)
            expected[:, -1] = -request
            assert (blocks[table[-1]] == expected).all(), f"request {request}: the token is wrong"
            free.extend(table)

        for request in range(1, REQUESTS + 1):
            while len(free) < BLOCKS_OF_A_REQUEST:
                take_back()
            table = tables[request] = [free.pop() for _ in range(BLOCKS_OF_A_REQUEST)]
            for number, block in enumerate(table):
                blocks[block] = content(request, number, device)
            finish(device)
            print(f"prefill: request {request} is in the blocks {table}", flush=True)
            requests.put((request, [cache.handle_at(block * BLOCK_BYTES) for block in table]))
        requests.put(None)
        while tables:
            take_back()
        decoder.join(LIMIT_S)
        assert decoder.exitcode == 0
    print(f"{REQUESTS} requests of {BLOCKS_OF_A_REQUEST} blocks went through {BLOCKS} blocks: every number is right")


if __name__ == "__main__":
    main()
