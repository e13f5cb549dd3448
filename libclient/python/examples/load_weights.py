"""Weights of safetensors files in several processes: once in memory, a new version under running readers, and one killed and back.

    python load_weights.py                              # four processes, a quarter of a GiB
    python load_weights.py --gib 4 --processes 8        # the table of docs/figures.md, with the package safetensors

It starts a broker of its own, writes files of random weights into a folder that it removes, checks each sum, and ends by itself. Beside
fdbroker stand `safetensors.torch.load_file`, where that package is installed, and the file mapped by mmap(2). Times are from the end of
the imports on, in ms; bytes are the processes' own share (PSS). Must never call weights equal that it has not read.
"""

import argparse
import importlib.util
import json
import mmap
import multiprocessing
import os
import shutil
import struct
import tempfile
import time
from typing import Any, Dict, List, Tuple

import fdbroker

#: Tensors of a file, and files.
TENSORS, FILES = 16, 2
#: Seconds that only a hang exceeds.
LIMIT_S = 600
PREFIX = "model/"


def write(folder: str, gib: float, seed: int) -> List[str]:
    """Files of random numbers, as safetensors describes them."""
    import torch

    rows = max(int(gib * 2**30) // (FILES * TENSORS * 4096), 1)
    torch.manual_seed(seed)
    paths = []
    for number in range(FILES):
        step = rows * 4096
        table = {
            f"layers.{number}.{n}": {"dtype": "F32", "shape": [rows, 1024], "data_offsets": [n * step, (n + 1) * step]} for n in range(TENSORS)
        }
        header = json.dumps(table).encode()
        header += b" " * (-len(header) % 8)
        path = os.path.join(folder, f"model-{number}.safetensors")
        with open(path + ".new", "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            for _ in range(TENSORS):
                file.write(memoryview(torch.rand(rows, 1024).numpy()).cast("B"))
        os.rename(path + ".new", path)
        paths.append(path)
    return paths


def mapped(paths: List[str]) -> Dict[str, Any]:
    """The files mapped: what a program without fdbroker can do at best on the host."""
    import torch

    found = {}
    for path in paths:
        with open(path, "rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        length = struct.unpack("<Q", view[:8])[0]
        for name, row in json.loads(bytes(view[8 : 8 + length])).items():
            begin, end = row["data_offsets"]
            found[name] = torch.frombuffer(view[8 + length + begin : 8 + length + end], dtype=torch.float32).view(row["shape"])
    return found


def load(way: str, socket: str, paths: List[str]) -> Any:
    if way == "mmap":
        return mapped(paths)
    if way == "safetensors":
        from safetensors.torch import load_file

        return {name: tensor for path in paths for name, tensor in load_file(path).items()}
    from fdbroker.torch import load_safetensors

    # As long as a program is needed to come back in, whoever has read the files.
    return load_safetensors(
        paths, fdbroker.connect(socket), prefix=PREFIX, populate=True, keep=LIMIT_S, timeout=LIMIT_S, progress=lambda done, of: None
    )


def total(weights: Dict[str, Any]) -> float:
    return sum(float(tensor.sum()) for tensor in weights.values())


def share_of_memory() -> int:
    with open("/proc/self/smaps_rollup") as rollup:
        return next(int(line.split()[1]) << 10 for line in rollup if line.startswith("Pss:"))


def server(way: str, socket: str, paths: List[str], requests: Any) -> None:
    """A process that serves: loads, answers, and again when it is told that there is a new version."""
    import torch

    if way == "safetensors":
        importlib.import_module("safetensors.torch")
    if way == "fdbroker":
        importlib.import_module("fdbroker.torch")
    torch.set_num_threads(1)
    before, begin = share_of_memory(), time.monotonic()
    weights = load(way, socket, paths)
    loaded = time.monotonic()
    first = total(weights)
    read = time.monotonic()
    total(weights)
    again = time.monotonic()
    requests.send({"sum": first, "load": loaded - begin, "first": read - loaded, "second": again - read})
    while requests.recv() == "look":
        is_current = way != "fdbroker" or weights.is_current
        requests.send({"bytes": share_of_memory() - before, "sum": total(weights), "is_current": is_current})
        if not is_current:
            weights = load(way, socket, paths)
            requests.send({"sum": total(weights)})


class Server:
    def __init__(self, way: str, socket: str, paths: List[str]) -> None:
        context = multiprocessing.get_context("spawn")
        self.requests, theirs = context.Pipe()
        self.process = context.Process(target=server, args=(way, socket, paths, theirs))
        self.process.start()
        theirs.close()

    def hear(self) -> Dict[str, Any]:
        if not self.requests.poll(LIMIT_S):
            raise TimeoutError("a process does not answer")
        answer: Dict[str, Any] = self.requests.recv()
        return answer

    def look(self) -> Dict[str, Any]:
        self.requests.send("look")
        return self.hear()

    def end(self) -> None:
        self.requests.send("end")
        self.process.join()


def show(way: str, socket: str, paths: List[str], processes: int) -> Tuple[List[Server], float]:
    """All at once, then one that is killed and comes back. The line of the table; the processes that serve, and their sum."""
    servers = [Server(way, socket, paths) for _ in range(processes)]
    heard = [one.hear() for one in servers]
    assert len({one["sum"] for one in heard}) == 1, heard
    used = sum(one.look()["bytes"] for one in servers)
    servers[0].process.kill()
    servers[0].process.join()
    servers[0] = Server(way, socket, paths)
    back = servers[0].hear()
    assert back["sum"] == heard[0]["sum"]
    ms = {what: max(one[what] for one in heard) * 1e3 for what in ("load", "first", "second")}
    print(
        f"{way:<12}{ms['load']:>10.0f}{ms['first']:>12.0f}{ms['second']:>13.0f}{used / 2**20:>12.0f}"
        f"{(back['load'] + back['first']) * 1e3:>16.0f}", flush=True,
    )  # fmt: skip
    return servers, float(back["sum"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=0.25, help="of weights [0.25]")
    parser.add_argument("--processes", type=int, default=4, help="that serve [4]")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="fdbroker-weights-")
    try:
        with fdbroker.private_broker() as broker:
            paths = write(folder, options.gib, seed=1)
            print(f"{'':<12}{'load, ms':>10}{'1st pass':>12}{'2nd pass':>13}{'MiB of all':>12}{'killed, back':>16}")
            servers, before = show("fdbroker", broker.socket, paths, options.processes)
            # A new version, while they serve: they see it, and nobody's bytes change under a pass.
            from fdbroker.torch import load_safetensors

            new = write(folder, options.gib, seed=2)
            broker.delete_prefix(PREFIX)
            after = total(load_safetensors(new, broker, prefix=PREFIX, progress=lambda done, of: None))
            for one in servers:
                seen = one.look()
                assert (seen["sum"], seen["is_current"], one.hear()["sum"]) == (before, False, after), seen
                one.end()
            ways = ["mmap"] + ["safetensors"] * (importlib.util.find_spec("safetensors") is not None)
            for way in ways:
                for one in show(way, broker.socket, paths, options.processes)[0]:
                    one.end()
            print(f"{options.processes} processes loaded two versions: every number is right")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
