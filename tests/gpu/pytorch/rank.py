"""One process of PyTorch that shares tensors as its users' programs do: expandable segments, pickles by
torch.multiprocessing, no word of fdbroker; or PyTorch's default allocator. Prints one line of JSON. Must never look at anything that a program would not.
"""

import argparse
import os
import pickle
import resource
import signal
import socket
import statistics
import struct
import sys
import time

# PyTorch reads these when it is loaded.
if "--default-allocator" not in sys.argv:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    os.environ["TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC"] = "1"

from fds import limit_fds, nvidia_fds  # noqa: E402
from lines import say  # noqa: E402

import torch  # noqa: E402: the variables above come first
import torch.multiprocessing  # noqa: E402, F401: registers the pickling of tensors
from multiprocessing.reduction import ForkingPickler  # noqa: E402

# The longest wait for another process: loading PyTorch takes seconds, sharing less.
PATIENCE_S = 120
# Elements of which one is looked at: every segment of 20 MiB is seen a thousand times.
STRIDE = 4097
# The first element that consumers write, one each.
MARKS = 16


def send(peer, data):
    peer.sendall(struct.pack("Q", len(data)) + data)


def exactly(peer, count):
    data = bytearray()
    while len(data) < count:
        part = peer.recv(min(1 << 20, count - len(data)))
        if not part:
            raise ConnectionError("the other process is gone")
        data += part
    return bytes(data)


def receive(peer):
    return exactly(peer, struct.unpack("Q", exactly(peer, 8))[0])


def timed(call):
    begin = time.perf_counter()
    result = call()
    return result, (time.perf_counter() - begin) * 1e6


def median(times):
    return round(statistics.median(times)) if times else None


class Rank:
    """The CUDA context, and what there was before anything was shared."""

    def __init__(self, args):
        limit_fds(args.fds)
        self.args = args
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        self.fds_before = nvidia_fds()

    def tensor(self, number):
        elements = self.args.mib << 18
        return torch.full((elements,), float(number + 1), device="cuda")

    def say(self, **more):
        # A full fd table would not let us look.
        limit_fds(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        fds = nvidia_fds() - self.fds_before
        say({"role": self.args.role, **more, "new_nvidia_fds": fds})


def dumped(tensor):
    return bytes(ForkingPickler.dumps(tensor))


def produce(args):
    rank = Rank(args)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(args.socket)
    listener.listen(args.consumers)
    listener.settimeout(PATIENCE_S)
    peers = [listener.accept()[0] for _ in range(args.consumers)]
    for peer in peers:
        peer.settimeout(PATIENCE_S)
    tensors = [rank.tensor(number) for number in range(args.tensors)]
    torch.cuda.synchronize()
    begin = time.perf_counter()
    shared, times, error = 0, [], None
    try:
        if args.at_once:
            # A pickle is for one consumer: it counts references.
            for peer in peers:
                send(peer, pickle.dumps([dumped(tensor) for tensor in tensors]))
            shared = len(tensors)
        else:
            before = [timed(lambda: dumped(tensor)) for tensor in tensors] if args.all_first else None
            for number, tensor in enumerate(tensors):
                data, elapsed_us = before[number] if before else timed(lambda: dumped(tensor))
                times.append(elapsed_us)
                for peer in peers:
                    send(peer, data)
                    if receive(peer) != b"open":
                        raise RuntimeError("a consumer could not open it")
                shared += 1
        for peer in peers:
            send(peer, b"")
            receive(peer)
    except (OSError, RuntimeError) as cause:
        error = f"{type(cause).__name__}: {cause}"
    seconds = time.perf_counter() - begin
    marks = sum(
        float(tensor[MARKS + consumer]) == -(number + 1)
        for number, tensor in enumerate(tensors[:shared])
        for consumer in range(args.consumers)
    )
    rank.say(shared=shared, share_us=median(times), seconds=round(seconds, 3), marks=marks, error=error)
    if args.die:
        os.kill(os.getpid(), signal.SIGKILL)


def consume(args):
    rank = Rank(args)
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(PATIENCE_S)
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            peer.connect(args.socket)
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
    held, times, wrong, error = [], [], 0, None

    def open_one(data):
        nonlocal wrong
        number = len(held)
        tensor, elapsed_us = timed(lambda: pickle.loads(data))
        times.append(elapsed_us)
        wrong += not bool((tensor[::STRIDE] == number + 1).all())
        tensor[MARKS + args.index] = -(number + 1)
        held.append(tensor)

    try:
        if args.at_once:
            for data in pickle.loads(receive(peer)):
                open_one(data)
            torch.cuda.synchronize()
            receive(peer)
        else:
            while data := receive(peer):
                open_one(data)
                torch.cuda.synchronize()
                send(peer, b"open")
        send(peer, b"done")
    except (OSError, RuntimeError) as cause:
        error = f"{type(cause).__name__}: {cause}"
    if args.die:
        # The producer kills itself now: the end of its socket says when.
        try:
            peer.recv(1)
        except OSError:
            pass
        wrong += sum(float(tensor[1]) != number + 1 for number, tensor in enumerate(held))
    rank.say(index=args.index, opened=len(held), wrong=wrong, open_us=median(times), error=error)
    # What PyTorch does at the end of a consumer whose producer is gone is not looked at here.
    os._exit(1 if error or wrong else 0)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["producer", "consumer"])
    parser.add_argument("--socket", required=True, help="where the two meet")
    parser.add_argument("--tensors", type=int, required=True)
    parser.add_argument("--mib", type=int, required=True, help="size of each tensor")
    parser.add_argument("--fds", type=int, required=True, help="RLIMIT_NOFILE of this process")
    parser.add_argument("--consumers", type=int, default=1)
    parser.add_argument("--index", type=int, default=0, help="of this consumer")
    parser.add_argument("--all-first", action="store_true", help="pickle all before the first is opened")
    parser.add_argument("--at-once", action="store_true", help="all consumers open everything at the same time")
    parser.add_argument("--default-allocator", action="store_true", help="cudaMalloc and CUDA's own IPC calls")
    parser.add_argument("--die", action="store_true", help="the producer kills itself while all is held")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse()
    {"producer": produce, "consumer": consume}[arguments.role](arguments)
    sys.exit(0)
