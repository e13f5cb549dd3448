"""A producer and two consumers that share an array: no copy, no fd, no server to install.

    python producer_consumer.py                 # numpy, on the host
    python producer_consumer.py --device cuda   # PyTorch, on the GPU

It starts a broker of its own, checks each number, and ends by itself. Must never give two consumers the same rows.
"""

import argparse
import multiprocessing
from typing import Any

import fdbroker

SHAPE = (1000, 1000)
#: Seconds that only a hang exceeds.
LIMIT_S = 60


def as_array(memory: fdbroker.Memory, device: str) -> Any:
    """The memory as a numpy array or as a tensor, without a copy."""
    if device == "cpu":
        return memory.numpy()
    import torch

    return torch.from_dlpack(memory)


def counted(device: str) -> Any:
    """0, 1, 2 and so on, as an array or a tensor of the shape."""
    if device == "cpu":
        import numpy

        return numpy.arange(SHAPE[0] * SHAPE[1], dtype="float64").reshape(SHAPE)
    import torch

    return torch.arange(SHAPE[0] * SHAPE[1], dtype=torch.float64, device=device).view(SHAPE)


def finish(device: str) -> None:
    """Waits for the GPU: another process sees nothing of this one's streams."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)


def consume(socket: str, device: str, messages: Any, results: Any) -> None:
    """Another process: the array of the handle, the sum of its part, and its part doubled."""
    with fdbroker.connect(socket) as broker:
        handle, shape, dtype, first, end = messages.get(timeout=LIMIT_S)
        with broker.open(handle, shape, dtype, writable=True) as shared:
            rows = as_array(shared, device)[first:end]
            total = float(rows.sum())
            rows *= 2
            finish(device)
        print(f"consumer: rows {first} to {end} sum up to {total:,.0f}", flush=True)
        results.put(total)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, or cuda or cuda:N with PyTorch")
    device = parser.parse_args().device
    context = multiprocessing.get_context("spawn")
    messages, results = context.Queue(), context.Queue()
    with fdbroker.private_broker(max_fds=64) as broker:
        made = broker.empty(SHAPE, "float64", device=device)
        array, before = as_array(made, device), counted(device)
        array[:] = before
        finish(device)
        print(f"producer: {made.nbytes:,} bytes at {made.device}, named by a handle of {len(made.handle)}", flush=True)
        consumers = [
            context.Process(target=consume, args=(broker.socket, device, messages, results), daemon=True) for _ in range(2)
        ]
        for consumer, first in zip(consumers, (0, 500)):
            consumer.start()
            messages.put((made.handle, made.shape, made.dtype, first, first + 500))
        total = sum(results.get(timeout=LIMIT_S) for _ in consumers)
        for consumer in consumers:
            consumer.join(LIMIT_S)
            assert consumer.exitcode == 0
        assert total == float(before.sum()) and (array == 2 * before).all()
    print(f"two processes summed {total:,.0f} and doubled it in place: every number is right")


if __name__ == "__main__":
    main()
