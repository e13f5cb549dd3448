#!/usr/bin/env python3
"""Weights of one safetensors file on a GPU, in four processes: by fdbroker.torch.load_safetensors, where they are in memory once, and by
each process's own reading: safetensors where it is installed, else a plain reader of PyTorch alone, which the output names. One process
is killed and started again. Ends with `N passed, N failed`.

Needs an NVIDIA GPU, PyTorch, and fdbroker's package, library and programs (FDBROKER_LIBRARY, FDBROKER_BIN_DIR); with --device cpu no
GPU. The file is in the page cache before each way begins. Must never call a way right whose bytes nobody has compared.
"""

import argparse
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "pytorch"))

TENSORS, PROCESSES = 64, 4


def write(path, gib):
    """A file of the format (https://github.com/huggingface/safetensors#format), written by hand; the checksum of each tensor."""
    import torch

    rows, count, sums = {}, int(gib * 2**30) // TENSORS // 4, {}
    for number in range(TENSORS):
        begin = number * count * 4
        rows[f"layer{number}"] = {"dtype": "I32", "shape": [count], "data_offsets": [begin, begin + count * 4]}
    header = json.dumps(rows).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as out:
        out.write(len(header).to_bytes(8, "little") + header)
        for number, name in enumerate(rows):
            values = torch.arange(count, dtype=torch.int32) * (2 * number + 1) + number
            sums[name] = int(values.sum(dtype=torch.int64))
            out.write(memoryview(values.numpy()).cast("B"))
    return sums


def plain(path, device):
    """Each tensor from a map of the file, with nothing but PyTorch."""
    import torch

    with open(path, "rb") as source:
        length = int.from_bytes(source.read(8), "little")
        rows = json.loads(source.read(length))
    flat = torch.from_file(path, shared=False, size=os.path.getsize(path), dtype=torch.uint8)[8 + length :]
    found = {}
    for name, row in rows.items():
        begin, end = row["data_offsets"]
        found[name] = flat[begin:end].view(torch.int32).reshape(row["shape"]).to(device, copy=True)
    return found


def baseline():
    """The reading beside ours, and what it is called."""
    try:
        from safetensors.torch import load_file
    except ImportError:
        return plain, "a plain reader (safetensors is not installed)"
    return (lambda path, device: load_file(path, device=device)), "safetensors"


def read(options):
    """One process: loads when it is told, says how long it took and its checksums, and lives until it is told no more."""
    import torch

    import fdbroker.torch

    is_cuda = options.device != "cpu"
    if is_cuda:
        torch.zeros(1, device=options.device)
    elif options.way == "name":
        fdbroker.connect().close()
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    if options.way == "name":
        found = fdbroker.torch.load_safetensors(options.file, device=options.device, prefix="weights/", pin=True, populate=not is_cuda)
    else:
        found = baseline()[0](options.file, options.device)
    if is_cuda:
        torch.cuda.synchronize()
    took = time.perf_counter() - began
    sums = {name: int(tensor.sum(dtype=torch.int64)) for name, tensor in found.items()}
    if is_cuda:
        torch.cuda.empty_cache()
    print(json.dumps({"seconds": took, "sums": sums, "device": str(next(iter(found.values())).device)}), flush=True)
    sys.stdin.readline()


class Reader:
    def __init__(self, options, way, environment):
        self._left = options.until
        command = [sys.executable, __file__, "--way", way, "--file", options.file, "--device", options.device]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, bufsize=1, start_new_session=True
        )
        self.hear()

    def tell(self):
        self._child.stdin.write("\n")

    def hear(self):
        if not select.select([self._child.stdout], [], [], max(self._left - time.monotonic(), 0))[0]:
            raise RuntimeError("a reader does not answer in time")
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"a reader ended with {self._child.wait()}")
        return line

    def load(self):
        self.tell()
        return json.loads(self.hear())

    def end(self, by=signal.SIGKILL):
        if self._child.poll() is None:
            os.killpg(self._child.pid, by)
        self._child.wait()


def used_bytes(options):
    """Taken of the device, or of the host's shared and anonymous memory."""
    if options.device != "cpu":
        from run import used_mib

        return used_mib() << 20
    with open("/proc/meminfo") as source:
        found = {line.split(":")[0]: int(line.split()[1]) << 10 for line in source}
    return found["AnonPages"] + found["Shmem"]


def play(options, way, environment, expected, check):
    """All processes one way; the figures."""
    readers = [Reader(options, way, environment) for _ in range(PROCESSES)]
    try:
        before = used_bytes(options)
        with open(options.file, "rb") as source:
            while source.read(32 << 20):
                pass
        answers = [readers[0].load()]
        for reader in readers[1:]:
            reader.tell()
        answers += [json.loads(reader.hear()) for reader in readers[1:]]
        used = used_bytes(options) - before
        readers[1].end()
        readers[1] = Reader(options, way, environment)
        again = readers[1].load()
        right = all(it["sums"] == expected for it in [*answers, again])
        check(f"{way}: every tensor of {PROCESSES} processes, and of one that was killed and started again, is right", right)
        on = {it["device"].split(":")[0] for it in answers}
        check(f"{way}: on {options.device}", on == {options.device.split(":")[0]}, on)
    finally:
        for reader in readers:
            reader.end()
    others = statistics.median(it["seconds"] for it in answers[1:])
    return {"first_s": answers[0]["seconds"], "others_s": others, "again_s": again["seconds"], "gib": used / 2**30}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=8, help="size of the file [8]")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=200, help="the bound of everything [200]")
    parser.add_argument("--way", choices=["name", "file"], help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        return read(options)

    import fdbroker
    from run import Book

    options.until, book, figures = time.monotonic() + options.seconds, Book(), {}
    with tempfile.TemporaryDirectory() as folder, fdbroker.private_broker() as broker:
        options.file = os.path.join(folder, "model.safetensors")
        environment = {**os.environ, **broker.environment}
        try:
            expected = write(options.file, options.gib)
            for way in ("name", "file"):
                figures[way] = play(options, way, environment, expected, book.check)
            once = figures["name"]["gib"] < 1.5 * options.gib
            book.check("by name the weights are in memory once", once, figures["name"])
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            book.check("everything is done", False, error)
    beside = baseline()[1]
    print(f"\n{options.gib:g} GiB in {TENSORS} tensors on {options.device}, {PROCESSES} processes; `file` is {beside}")
    print(f"{'':<8}{'first, s':>12}{'others, s':>12}{'restarted, s':>14}{'memory, GiB':>13}")
    for way, row in figures.items():
        print(f"{way:<8}{row['first_s']:>12.3f}{row['others_s']:>12.3f}{row['again_s']:>14.3f}{row['gib']:>13.2f}")
    print(json.dumps({"part": "weights", "size_gib": options.gib, "device": options.device, "beside": beside, **figures}))
    print(f"{book.passed} passed, {book.failed} failed")
    return 1 if book.failed else 0


if __name__ == "__main__":
    sys.exit(main())
