"""One process with a state dict: a trainer that puts it under a name, a reader that gets it by that name, or PyTorch's own way directly.
Takes orders as lines of JSON and answers each with one. Must never send a tensor's bytes: checksums alone leave the GPU.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time

from fds import limit_fds, nvidia_fds
from lines import say

import torch
import torch.multiprocessing as mp
from multiprocessing.reduction import ForkingPickler

NAME = "model"
# Of all waits for the broker, and of one process for another.
PATIENCE_S = 60.0
# Words of 8 bytes of which one is weighted by its place: bytes that were moved are seen, too.
STRIDE = 1021


class Device:
    """The GPU, or with the stand-in the CPU, whose memory the stand-in's is."""

    def __init__(self, is_stand_in):
        self.name = "cpu" if is_stand_in else "cuda:0"
        # Where fdbroker puts it; None: where the tensors are.
        self.place = "cuda:0" if is_stand_in else None
        if is_stand_in:
            import fdbroker._dlpack
            from types import SimpleNamespace

            fdbroker._dlpack.CUDA = fdbroker._dlpack.CPU
            torch.cuda.current_stream = lambda _: SimpleNamespace(cuda_stream=0)
        self.is_stand_in = is_stand_in

    def settle(self):
        if not self.is_stand_in:
            torch.cuda.synchronize()

    def empty(self):
        gc.collect()
        if not self.is_stand_in:
            torch.cuda.ipc_collect()
            torch.cuda.empty_cache()


class Model:
    """Tensors of all kinds: plain, transposed, bfloat16, channels_last, small ones, and one that is tied to another."""

    def __init__(self, tensors, mib, device):
        self._device = device
        self._bases, self.state = [], {}
        for number in range(tensors):
            # mib << 20 bytes each.
            kind = number % 4
            shape = [(mib << 8, 1024), (1024, mib << 8), (mib << 9, 1024), (mib, 64, 64, 64)][kind]
            base = torch.empty(shape, dtype=torch.bfloat16 if kind == 2 else torch.float32, device=device.name)
            if kind == 3:
                base = base.to(memory_format=torch.channels_last)
            self._bases.append(base)
            self.state[f"layer{number}.weight"] = base.t() if kind == 1 else base
            small = torch.empty(4096, device=device.name)
            self._bases.append(small)
            self.state[f"layer{number}.bias"] = small
        self.state["head.weight"] = self.state["layer0.weight"]

    def fill(self, seed):
        """What a step of training leaves."""
        torch.manual_seed(seed)
        for base in self._bases:
            base.normal_()
        self.state["step"] = seed
        self._device.settle()

    def clone(self):
        return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in self.state.items()}


def sums(state):
    """Of each tensor: the sum of its words, that of some weighted by their place, and how it is laid out."""
    rows = {}
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            rows[name] = value
            continue
        words = value.as_strided((value.numel(),), (1,)).view(torch.int64)
        some = words[::STRIDE]
        places = torch.arange(1, some.numel() + 1, device=some.device)
        both = torch.stack([words.sum(), (some * places).sum()]).tolist()
        rows[name] = [*both, str(value.dtype), list(value.shape), list(value.stride())]
    return rows


def wrong(state, expected):
    """The names of tensors that are not as they should be."""
    found = sums(state)
    return sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))


def timed(device, call):
    device.settle()
    begin = time.perf_counter()
    result = call()
    device.settle()
    return result, time.perf_counter() - begin


class Role:
    """A process that takes orders."""

    def __init__(self, args):
        limit_fds(args.fds)
        self.args, self.device = args, Device(args.stand_in)
        torch.zeros(1, device=self.device.name)
        self.device.settle()
        import fdbroker
        import fdbroker.torch

        self.broker = fdbroker.connect(args.socket)
        self.calls = fdbroker.torch
        # The first use of a driver opens fds that stay.
        with self.broker.empty(1, device="cuda:0"):
            pass
        self.broker.flush()
        # The kernels are loaded at their first use, and take device memory.
        small = Model(4, 1, self.device)
        small.fill(0)
        sums(small.state)
        del small
        self.device.empty()
        self.fds_before = nvidia_fds()

    def serve(self):
        say({"ready": os.getpid()})
        for line in sys.stdin:
            order = json.loads(line)
            try:
                say(getattr(self, order.pop("do"))(**order))
            except Exception as error:
                say({"error": f"{type(error).__name__}: {error}"})

    def get(self):
        return timed(self.device, lambda: self.calls.get_state_dict(NAME, self.broker, timeout=PATIENCE_S))

    def fds(self):
        return {"new_fds": nvidia_fds() - self.fds_before, "all_fds": len(os.listdir("/proc/self/fd")) - 1}


class Trainer(Role):
    def __init__(self, args):
        super().__init__(args)
        self.model = Model(args.tensors, args.mib, self.device)

    def put(self, seed):
        """Trains a step, and puts the weights."""
        self.model.fill(seed)
        version, seconds = timed(
            self.device,
            lambda: self.calls.put_state_dict(
                NAME, self.model.state, self.broker, device=self.device.place, replace=True, keep=600, timeout=PATIENCE_S
            ),
        )
        return {"version": version, "seconds": seconds, "sums": sums(self.model.state), **self.fds()}

    def load(self, expected):
        """Goes on where the trainer before was killed."""
        found, seconds = self.get()
        bad = wrong(found, expected)
        for name, value in self.model.state.items():
            if isinstance(value, torch.Tensor):
                value.copy_(found[name])
        self.device.settle()
        answer = {"version": found.version, "seconds": seconds, "wrong": bad, "step": found["step"]}
        del found, value
        gc.collect()
        return {**answer, **self.fds()}

    def delete(self):
        self.broker.delete(NAME)
        self.broker.flush()
        return {"left": self.broker.stat(NAME) is not None}


class Reader(Role):
    def __init__(self, args):
        super().__init__(args)
        self.state = None

    def update(self, version, expected):
        """Gets the newest, and gives back the one before."""
        was_current = self.state is not None and self.state.is_current
        self.state, seconds = self.get()
        bad = wrong(self.state, expected)
        if self.state.version != version or was_current:
            bad.append(f"version {self.state.version}, the one before current: {was_current}")
        if self.state["head.weight"].data_ptr() != self.state["layer0.weight"].data_ptr():
            bad.append("the tied tensor")
        devices = sorted({str(it.device) for it in self.state.values() if isinstance(it, torch.Tensor)})
        return {"seconds": seconds, "wrong": bad, "devices": devices, **self.fds()}

    def check(self, expected):
        return {"wrong": wrong(self.state, expected)}

    def drop(self):
        self.state = None
        self.device.empty()
        self.broker.flush()
        return self.fds()


# --- PyTorch's own way ---


def direct_worker(connection, is_stand_in, fds):
    limit_fds(fds)
    device = Device(is_stand_in)
    torch.zeros(1, device=device.name)
    before, state = nvidia_fds(), None
    connection.send("ready")
    while (message := connection.recv_bytes()) != b"end":
        newest, seconds = timed(device, lambda: ForkingPickler.loads(message))
        state = newest
        del newest
        bad = wrong(state, connection.recv())
        device.empty()
        connection.send({"seconds": seconds, "wrong": bad, "new_fds": nvidia_fds() - before})
    state = None
    device.empty()
    connection.send("done")


def received(connection):
    if not connection.poll(PATIENCE_S):
        raise TimeoutError("a worker does not answer")
    return connection.recv()


def direct(args):
    """The same state dict to as many workers by torch.multiprocessing: cloned as each update is, pickled for each."""
    device, context = Device(args.stand_in), mp.get_context("spawn")
    pairs = [context.Pipe() for _ in range(args.readers)]
    workers = [context.Process(target=direct_worker, args=(there, args.stand_in, args.fds), daemon=True) for _, there in pairs]
    for worker in workers:
        worker.start()
    connections = [here for here, _ in pairs]
    model = Model(args.tensors, args.mib, device)
    for connection in connections:
        received(connection)
    clones, shares, opens, bad, fds, kept = [], [], [], [], 0, None
    for seed in range(1, args.updates + 1):
        model.fill(seed)
        newest, seconds = timed(device, model.clone)
        clones.append(seconds)
        messages, seconds = timed(device, lambda: [bytes(ForkingPickler.dumps(newest)) for _ in connections])
        shares.append(seconds)
        expected = sums(newest)
        for connection, message in zip(connections, messages):
            connection.send_bytes(message)
            connection.send(expected)
        answers = [received(connection) for connection in connections]
        opens.append(max(it["seconds"] for it in answers))
        bad += [name for it in answers for name in it["wrong"]]
        fds = max(fds, *(it["new_fds"] for it in answers))
        kept = newest
        del newest, messages
        device.empty()
    for connection in connections:
        connection.send_bytes(b"end")
        received(connection)
    del kept
    device.empty()
    for worker in workers:
        worker.join(PATIENCE_S)
    middle = statistics.median
    say(
        {
            "clone": middle(clones),
            "share": middle(shares),
            "open": middle(opens),
            "wrong": bad,
            "new_fds": fds,
            "exit": [worker.exitcode for worker in workers],
        }
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["trainer", "reader", "direct"])
    parser.add_argument("--socket", help="of the broker")
    parser.add_argument("--tensors", type=int, required=True)
    parser.add_argument("--mib", type=int, required=True, help="size of each tensor")
    parser.add_argument("--fds", type=int, required=True, help="RLIMIT_NOFILE of this process")
    parser.add_argument("--readers", type=int, default=0)
    parser.add_argument("--updates", type=int, default=0)
    parser.add_argument("--stand-in", action="store_true")
    args = parser.parse_args()
    if args.role == "direct":
        limit_fds(args.fds)
        direct(args)
    else:
        {"trainer": Trainer, "reader": Reader}[args.role](args).serve()


if __name__ == "__main__":
    main()
