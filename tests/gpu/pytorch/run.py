#!/usr/bin/env python3
"""Unmodified PyTorch on a GPU, with the CUDA layer and directly: prints each run's figures, then `N passed, N failed`.

Needs an NVIDIA GPU, PyTorch in python3, and in FOLDER `fdbroker`, `libfdbroker_cuda.so` and `libfdbroker.so.0`. Must never pass for want of
either, nor leave a process behind.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import beside
from lines import say

HERE = Path(__file__).resolve().parent
# The longest run: loading PyTorch nine times, and filling 64 GiB.
PATIENCE_S = 240
# Device memory that other things than tensors may take meanwhile.
MIB_BACK = 512
BESIDE = {"loader": beside.loader, "sleep": beside.sleep, "checkpoint": beside.checkpoint, "outages": beside.outages, "weights": beside.weights}
PARTS = ["turns", "many", "queues", "both", *BESIDE]
# These need two GPUs.
GROUP_PARTS = ["windows", "nvshmem", "ddp", "fsdp", "names"]
MALLOC_PARTS = ["malloc", "malloc-devices"]
DEVICE_PARTS = ["nccl", "symmetric", "across", *GROUP_PARTS]
PYTHON = HERE.parents[2] / "libclient/python"
OWN_NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]


def used_mib():
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return sum(map(int, subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()))


def ranks(options):
    """The inner part, under `fdbroker run` or directly: the producer and its consumers, then what the broker says."""
    with tempfile.TemporaryDirectory() as folder:
        common = ["--socket", f"{folder}/s", "--tensors", str(options.tensors), "--mib", str(options.mib)]
        common += ["--fds", str(options.fds), "--consumers", str(options.consumers)]
        common += [f"--{flag}" for flag in options.flags]
        python = [sys.executable, str(HERE / "rank.py")]
        processes = [subprocess.Popen([*python, "producer", *common])]
        prefix = OWN_NAMESPACE if options.own_namespace else []
        for index in range(options.consumers):
            processes.append(subprocess.Popen([*prefix, *python, "consumer", *common, "--index", str(index)]))
        codes = [process.wait(PATIENCE_S) for process in processes]
    say({"role": "exit", "codes": codes})
    ledger()


def program(options):
    command = [sys.executable, str(HERE / options.program), "--fds", str(options.fds)]
    if options.library:
        command += ["--library", options.library]
    if options.what:
        command += ["--what", options.what, "--expandable", options.expandable, "--size", str(options.size)]
    if options.rounds:
        command += ["--rounds", str(options.rounds)]
    process = subprocess.Popen(command)
    try:
        if options.outages:
            say(beside.kill_brokers(process))
    finally:
        say({"role": "exit", "codes": [process.wait(PATIENCE_S)]})
    ledger()


def ledger():
    """What is left in the broker when all ranks have ended, and what audit finds."""
    if "FDBROKER_ADMIN_SOCKET" not in os.environ:
        return
    fdbroker = os.environ["FDBROKER"]

    def asked(*words):
        done = subprocess.run([fdbroker, *words, "--json"], capture_output=True, text=True)
        return json.loads(done.stdout)

    status, until = asked("status"), time.monotonic() + 5
    while status["allocations"]["now"] and time.monotonic() < until:
        time.sleep(0.05)
        status = asked("status")
    findings = asked("audit").get("findings", [])
    left = {name: status[name]["now"] for name in ("allocations", "open_leases", "mapped_leases")}
    counters = {name: status[name] for name in ("deposits", "grants", "evictions", "recalls")}
    say({"role": "broker", "left": left, "findings": findings, "peak_fds": status["fds"]["peak"], **counters})


class Book:
    """The outcomes."""

    def __init__(self):
        self.passed = self.failed = 0

    def check(self, what, holds, seen=None):
        self.passed += bool(holds)
        self.failed += not holds
        print(f"{'ok    ' if holds else 'FAILED'}  {what}" + ("" if holds else f": {seen}"), flush=True)


class Bench:
    """Runs one configuration after the other."""

    def __init__(self, folder, book):
        self.fdbroker, self.library = str(folder / "fdbroker"), str(folder / "libfdbroker.so.0")
        # How the layer is asked for.
        self.layer = "--cuda"
        self.book, self.rows, self.device_rows, self.ratio_rows = book, [], [], []

    def run(self, name, words, cap=None, patience_s=PATIENCE_S):
        """Runs the inner part; `cap`: under the layer, with so many fds on the node. Answers what was printed."""
        launcher = [self.fdbroker, "run", self.layer, "--max-fds", str(cap), "--"] if cap else []
        before = used_mib()
        environment = {**os.environ, "FDBROKER": self.fdbroker, "FDBROKER_LIBRARY": self.library,
                       "PYTHONPATH": os.pathsep.join(filter(None, [str(PYTHON), os.environ.get("PYTHONPATH")]))}
        command = [*launcher, sys.executable, str(HERE / "run.py"), *map(str, words)]
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=environment, start_new_session=True)
        try:
            out, err = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            err += f"\nnot done after {patience_s} s"
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        print(f"\n=== {name} ({time.monotonic() - begin:.0f} s)")
        for line in lines:
            print("    " + json.dumps(line))
        failed = any(any(line["codes"]) for line in self.of(lines, "exit")) or process.returncode
        words_of_stderr = [line for line in err.splitlines() if "arn" not in line][-80 if failed else -12:]
        print("".join(f"    | {line}\n" for line in words_of_stderr), end="", flush=True)
        until = time.monotonic() + 10
        while used_mib() > before + MIB_BACK and time.monotonic() < until:
            time.sleep(0.2)
        self.book.check(f"{name}: all device memory is back", used_mib() <= before + MIB_BACK, used_mib())
        return lines

    def of(self, lines, role):
        return [line for line in lines if line["role"] == role]

    def shared(self, name, lines, tensors, consumers):
        """Everything was shared, opened and right."""
        producer, opened = self.of(lines, "producer"), self.of(lines, "consumer")
        check = self.book.check
        check(f"{name}: everything is shared",
              producer and producer[0]["shared"] == tensors and not producer[0]["error"], producer)
        check(f"{name}: everything is opened, every byte that was looked at is right",
              len(opened) == consumers and all(it["opened"] == tensors and not it["wrong"] for it in opened), opened)
        check(f"{name}: the producer sees all marks",
              producer and producer[0]["marks"] == tensors * consumers, producer)
        return producer[0] if producer else None, opened

    def layered(self, name, lines, cap):
        processes, check = [it for it in lines if "new_nvidia_fds" in it], self.book.check
        check(f"{name}: no process has an fd of shared memory",
              processes and all(it["new_nvidia_fds"] == 0 for it in processes), processes)
        self.left(name, lines, cap)

    def left(self, name, lines, cap):
        broker, check = self.of(lines, "broker"), self.book.check
        check(f"{name}: never more than {cap} fds on the node", broker and broker[0]["peak_fds"] <= cap, broker)
        check(f"{name}: nothing is left in the broker", broker and not any(broker[0]["left"].values()), broker)
        check(f"{name}: audit finds nothing", broker and not broker[0]["findings"], broker)

    def row(self, name, producer, opened):
        opens = [it["open_us"] for it in opened if it["open_us"]]
        self.rows.append((name, producer and producer["share_us"], opens and max(opens), producer and producer["seconds"]))


def turns(bench, tensors):
    """One producer and one consumer, in turns: what a tensor costs."""
    def words(fds, *more):
        return ["--ranks", "--tensors", tensors, "--mib", 512, "--fds", fds, *more]

    few = bench.run("direct, 1,024 fds", words(1024))
    producer = bench.of(few, "producer")
    if tensors * 26 > 1024:
        bench.book.check("direct, 1,024 fds: it ends at the fd limit", producer and producer[0]["error"], producer)
    apart = bench.run("direct, PID namespace of its own", words(20000, "--own-namespace"))
    opened = bench.of(apart, "consumer")
    bench.book.check("direct, PID namespace of its own: nothing can be opened", opened and opened[0]["error"], opened)
    runs = [
        ("direct, 20,000 fds", None, words(20000)),
        ("layer, 16,384 fds on the node", 16384, words(256)),
        ("layer, 16,384 fds on the node, again", 16384, words(256)),
        ("direct, 20,000 fds, again", None, words(20000)),
        ("layer, 256 fds on the node", 256, words(256)),
        ("layer, 256, PID namespace of its own", 256, words(256, "--own-namespace")),
        ("layer, 256, each recalled once", 256, words(256, "--flag", "all-first")),
    ]
    for name, cap, how in runs:
        lines = bench.run(name, how, cap)
        bench.row(name, *bench.shared(name, lines, tensors, 1))
        if cap:
            bench.layered(name, lines, cap)


def many(bench, tensors):
    """Eight consumers at once; then the producer is killed while they hold everything."""
    words = ["--ranks", "--tensors", tensors, "--mib", 512, "--consumers", 8, "--flag", "at-once", "--flag", "die"]
    runs = [
        ("8 consumers, direct, 20,000 fds", None, [*words, "--fds", 20000]),
        ("8 consumers, layer, 16,384 fds on the node", 16384, [*words, "--fds", 256]),
        ("8 consumers, layer, 256 fds on the node", 256, [*words, "--fds", 256]),
        ("8 consumers, direct, again", None, [*words, "--fds", 20000]),
        ("8 consumers, layer, 256, PID namespaces of their own", 256, [*words, "--fds", 256, "--own-namespace"]),
    ]
    for name, cap, how in runs:
        lines = bench.run(name, how, cap)
        bench.row(name, *bench.shared(name, lines, tensors, 8))
        if cap:
            bench.layered(name, lines, cap)


def queues(bench):
    """torch.multiprocessing's own queues, while segments grow and are trimmed."""
    for name, cap, fds in [("torch.multiprocessing, direct", None, 20000), ("torch.multiprocessing, layer", 256, 1024)]:
        lines = bench.run(name, ["--program", "workers.py", "--fds", fds], cap)
        done = bench.of(lines, "workers")
        right = done and not done[0]["wrong"] and not any(done[0]["exit"])
        bench.book.check(f"{name}: every tensor is right in 8 workers", right, lines)
        if cap:
            bench.layered(name, lines, cap)


def both(bench):
    """PyTorch and fdbroker's own library in one program."""
    name = "PyTorch and libfdbroker in one program"
    lines = bench.run(name, ["--program", "both.py", "--fds", 1024, "--library", bench.library], 256)
    done = bench.of(lines, "both")
    right = done and not done[0]["wrong"] and not any(done[0]["exit"])
    bench.book.check(f"{name}: tensors and host memory are right in another process", right, lines)
    bench.layered(name, lines, 256)


def devices(bench, what, size):
    """A process on each GPU, directly and under the layer in turns."""
    for expandable in ("on", "off"):
        fds = {}
        for name, cap in beside.TURNS[: 4 if size == 2 else 2]:
            name = f"{what}, expandable segments {expandable}, {name}"
            words = ["--program", "devices.py", "--what", what, "--expandable", expandable, "--fds", 4096, "--size", size]
            lines = bench.run(name, words, cap)
            ranks = bench.of(lines, "device")
            right = len(ranks) == (1 if what == "across" else size) and not any(it["wrong"] for it in ranks)
            codes = bench.of(lines, "exit")
            bench.book.check(f"{name}: results are right", right and codes and codes[0]["codes"] == [0], lines)
            fds[name] = max((it["new_nvidia_fds"] for it in ranks), default=None)
            if cap:
                bench.left(name, lines, cap)
            bench.device_rows.append((name, ranks[0] if ranks else {}))
        bench.book.check(f"{what}, expandable segments {expandable}: no process has more fds under the layer than directly",
                         None not in fds.values() and max(count for name, count in fds.items() if "layer" in name)
                         <= max(count for name, count in fds.items() if "direct" in name), fds)


def malloc(bench, tensors):
    """The default allocator: memory of cudaMalloc, and CUDA's own IPC calls."""
    bench.layer = "--cuda=malloc"
    words = ["--ranks", "--tensors", tensors, "--mib", 512, "--fds", 1024, "--flag", "default-allocator"]
    many = [*words, "--consumers", 8, "--flag", "at-once"]
    runs = [
        ("cudaMalloc, direct", None, words, 1),
        ("cudaMalloc, layer", 4096, words, 1),
        ("cudaMalloc, layer, again", 4096, words, 1),
        ("cudaMalloc, direct, again", None, words, 1),
        ("cudaMalloc, layer, 64 fds", 64, words, 1),
        ("cudaMalloc, layer, PID namespace of its own", 4096, [*words, "--own-namespace"], 1),
        ("cudaMalloc, 8 consumers, direct", None, many, 8),
        ("cudaMalloc, 8 consumers, layer", 4096, many, 8),
        ("cudaMalloc, its producer killed, layer", 4096, [*words, "--flag", "die"], 1),
    ]
    found = {}
    for name, cap, how, consumers in runs:
        lines = bench.run(name, how, cap)
        producer, opened = bench.shared(name, lines, tensors, consumers)
        bench.row(name, producer, opened)
        if cap:
            bench.layered(name, lines, cap)
        if consumers == 1 and "die" not in how:
            found[name] = [{"share_us": producer and producer["share_us"], "open_us": opened and opened[0]["open_us"]}]
    plain = {name: said for name, said in found.items() if ", 64" not in name and "PID" not in name}
    beside.ratios(bench, "cudaMalloc", plain, ["share_us", "open_us"])
    name = "cudaMalloc, shared by handle where it lies"
    lines = bench.run(name, ["--program", "lying.py", "--fds", 1024], 64)
    done = bench.of(lines, "lying")
    bench.book.check(f"{name}: every byte is right, and the mark is seen", done and not done[0]["wrong"], lines)
    bench.left(name, lines, 64)
    bench.layer = "--cuda"


def malloc_devices(bench, size):
    """NCCL and tensors across GPUs, with memory of cudaMalloc, which NCCL opens by CUDA's IPC calls when its cuMem is off."""
    bench.layer, before = "--cuda=malloc", os.environ.get("NCCL_CUMEM_ENABLE")
    os.environ["NCCL_CUMEM_ENABLE"] = "0"
    for what in ("across", "nccl"):
        for name, cap in beside.TURNS[:2]:
            name = f"{what} of cudaMalloc, {name}"
            lines = bench.run(name, ["--program", "devices.py", "--what", what, "--expandable", "off", "--fds", 4096, "--size", size], cap)
            said = bench.of(lines, "device")
            right = len(said) == (1 if what == "across" else size) and not any(it["wrong"] for it in said)
            bench.book.check(f"{name}: results are right", right, lines)
            if cap:
                bench.left(name, lines, cap)
            bench.device_rows.append((name, said[0] if said else {}))
    os.environ.pop("NCCL_CUMEM_ENABLE")
    if before is not None:
        os.environ["NCCL_CUMEM_ENABLE"] = before
    bench.layer = "--cuda"


def table(rows):
    if not rows:
        return
    print(f"\n{'run':<56}{'share us':>10}{'open us':>10}{'seconds':>10}")
    for name, *figures in rows:
        print(f"{name:<56}" + "".join(f"{'-' if figure is None else figure:>10}" for figure in figures))


def device_table(rows):
    for name, rank in rows:
        figures = [f"{key} {value}" for key, value in rank.items()
                   if key.endswith(("_us", "_ms", "_fds", "_mib", "_gib", "seconds", "opened", "grants", "deposits"))]
        print(f"{name:<56}" + ", ".join(figures))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="of the programs")
    parser.add_argument("--gib", type=int, default=32, help="device memory to share [32]")
    parser.add_argument("--gpus", type=int, choices=[2, 4], default=2, help="of the parts that need several [2]")
    parser.add_argument("--part", action="append", choices=PARTS + MALLOC_PARTS + DEVICE_PARTS,
                        help=f"run this alone; by default {', '.join(PARTS)}, which need one GPU")
    inner = parser.add_argument_group("the inner part, which the program starts by itself")
    inner.add_argument("--ranks", action="store_true")
    inner.add_argument("--program", choices=["workers.py", "both.py", "devices.py", "loader.py", "asleep.py", "frozen.py", "weights.py", "lying.py"])
    inner.add_argument("--what", choices=DEVICE_PARTS)
    inner.add_argument("--expandable", choices=["on", "off"])
    inner.add_argument("--size", type=int, default=2)
    inner.add_argument("--rounds", type=int)
    inner.add_argument("--outages", action="store_true", help="kill the broker meanwhile")
    inner.add_argument("--library")
    inner.add_argument("--tensors", type=int)
    inner.add_argument("--mib", type=int)
    inner.add_argument("--fds", type=int)
    inner.add_argument("--consumers", type=int, default=1)
    inner.add_argument("--own-namespace", action="store_true")
    inner.add_argument("--flag", dest="flags", action="append", default=[])
    options = parser.parse_args()
    if options.ranks:
        return ranks(options)
    if options.program:
        return program(options)
    if not options.folder:
        parser.error("the folder of fdbroker is missing")
    book = Book()
    bench = Bench(options.folder.resolve(), book)
    parts = options.part or PARTS
    if "turns" in parts:
        turns(bench, options.gib * 2)
    if "many" in parts:
        many(bench, options.gib)
    if "queues" in parts:
        queues(bench)
    if "both" in parts:
        both(bench)
    for what, play in BESIDE.items():
        if what in parts:
            play(bench)
    if "malloc" in parts:
        malloc(bench, options.gib * 2)
    if "malloc-devices" in parts:
        malloc_devices(bench, options.gpus)
    for what in DEVICE_PARTS:
        if what in parts:
            (beside.groups if what in GROUP_PARTS else devices)(bench, what, options.gpus)
    table(bench.rows)
    device_table(bench.device_rows)
    print("\n".join(bench.ratio_rows))
    print(f"{book.passed} passed, {book.failed} failed")
    return 1 if book.failed else 0


if __name__ == "__main__":
    sys.exit(main())
