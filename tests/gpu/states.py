#!/usr/bin/env python3
"""A state dict on a GPU by one name: put by a trainer, got by readers in PID namespaces of their own under 256 fds, updated again and again,
the trainer killed and started anew; then the same by torch.multiprocessing directly. Ends with `N passed, N failed`.

Needs an NVIDIA GPU with 50 GiB of free memory, PyTorch, root for namespaces, and fdbroker's package, library and programs (FDBROKER_LIBRARY,
FDBROKER_BIN_DIR). Must never take longer than its bound, nor leave a process behind.
"""

import argparse
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

PARTS = Path(__file__).resolve().parent / "pytorch"
sys.path.insert(0, str(PARTS))

import fdbroker  # noqa: E402
from run import MIB_BACK, OWN_NAMESPACE, Book, used_mib  # noqa: E402

MAX_FDS = 256
# PyTorch's own way is given what it needs.
DIRECT_FDS = 4096


class Process:
    """One part of pytorch/states.py."""

    def __init__(self, bench, role, *more, apart=False, fds=MAX_FDS):
        self._bench, self._name, self._text = bench, role, b""
        options = bench.options
        command = [*(OWN_NAMESPACE if apart else []), sys.executable, str(PARTS / "states.py"), role, "--socket", bench.broker.socket]
        command += ["--tensors", str(options.tensors), "--mib", str(options.mib), "--fds", str(fds), *map(str, more)]
        command += ["--stand-in"] if options.stand_in else []
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0)
        bench.processes.append(self)

    def tell(self, do, **more):
        self._child.stdin.write((json.dumps({"do": do, **more}) + "\n").encode())

    def hear(self):
        """The next line that it says. Raises when it says none in time, or an error."""
        while b"\n" not in self._text:
            left_s = self._bench.until - time.monotonic()
            if left_s <= 0 or not select.select([self._child.stdout], [], [], left_s)[0]:
                raise RuntimeError(f"{self._name}: no answer within {self._bench.options.seconds} s in all")
            more = os.read(self._child.stdout.fileno(), 1 << 20)
            if not more:
                raise RuntimeError(f"{self._name}: ended with {self._child.wait()}")
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self._name}: {answer['error']}")
        return answer

    def ask(self, do, **more):
        self.tell(do, **more)
        return self.hear()

    def end(self):
        """By the end of its orders."""
        self._child.stdin.close()
        return self._child.wait(max(self._bench.until - time.monotonic(), 1))

    def kill(self):
        """All of it, in whatever namespace."""
        if self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


class Bench:
    def __init__(self, options):
        self.options, self.book, self.processes = options, Book(), []
        self.until = time.monotonic() + options.seconds
        # Nobody is silent because he is busy.
        self.broker = fdbroker.private_broker(max_fds=MAX_FDS, settings={"limits.recall_timeout_ms": 60000})
        self.used_mib = StandInsMemory().used_mib if options.stand_in else used_mib

    def status(self):
        environment = {**os.environ, **self.broker.environment}
        command = [sys.executable, "-m", "fdbroker", "status", "--json"]
        return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, timeout=30).stdout)

    def comes_back(self, what, before):
        """Whether no more device memory is taken than before, soon."""
        until = time.monotonic() + 5
        while self.used_mib() > before + self.options.mib_back and time.monotonic() < until:
            time.sleep(0.1)
        used = self.used_mib()
        self.book.check(f"{what}: device memory is back", used <= before + self.options.mib_back, f"{used} MiB, {before} before")

    def everybody(self, readers, do, **more):
        for reader in readers:
            reader.tell(do, **more)
        return [reader.hear() for reader in readers]


class StandInsMemory:
    """The memory of the tests' stand-in for the driver."""

    def __init__(self):
        import ctypes

        self._ctypes, self._driver, context = ctypes, ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        assert self._driver.cuInit(0) == 0
        assert self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert self._driver.cuCtxPushCurrent_v2(context) == 0

    def used_mib(self):
        free, total = self._ctypes.c_size_t(), self._ctypes.c_size_t()
        assert self._driver.cuMemGetInfo_v2(self._ctypes.byref(free), self._ctypes.byref(total)) == 0
        return (total.value - free.value) >> 20


def updates(bench, readers, trainer, seeds, figures):
    """New versions, each read by all; the last checksums."""
    expected, bad, devices = {}, [], set()
    for seed in seeds:
        put = trainer.ask("put", seed=seed)
        expected = put.pop("sums")
        answers = bench.everybody(readers, "update", version=put["version"], expected=expected)
        figures["put"].append(put["seconds"])
        figures["get"] += [it["seconds"] for it in answers]
        figures["fds"] += [it["new_fds"] for it in (put, *answers)]
        bad += [f"{name} of step {seed}" for it in answers for name in it["wrong"]]
        devices.update(*(it["devices"] for it in answers))
    words = f"{len(seeds)} versions, {len(readers)} readers"
    bench.book.check(f"{words}: every tensor of each is right, its strides and its tie too", expected and not bad, bad[:8])
    where = "cpu" if bench.options.stand_in else "cuda:0"
    bench.book.check(f"{words}: the tensors are on {where}", devices == {where}, devices)
    return expected


def by_name(bench, figures):
    options, check = bench.options, bench.book.check
    before = bench.used_mib()
    readers = [Process(bench, "reader", apart=not options.no_namespaces) for _ in range(options.readers)]
    for reader in readers:
        reader.hear()
    with_readers = bench.used_mib()
    trainer = Process(bench, "trainer")
    trainer.hear()
    expected = updates(bench, readers, trainer, range(1, options.updates + 1), figures)

    trainer.kill()
    held = bench.everybody(readers, "check", expected=expected)
    check("the trainer is killed: what readers have is right", not any(it["wrong"] for it in held), held)
    trainer = Process(bench, "trainer")
    trainer.hear()
    loaded = trainer.ask("load", expected=expected)
    right = not loaded["wrong"] and loaded["step"] == options.updates
    check("a new trainer goes on with the last version, every tensor right", right, loaded)
    figures["load"] = [loaded["seconds"]]
    updates(bench, readers, trainer, [options.updates + 1], figures)

    fds = bench.everybody(readers, "drop")
    check(
        "no process has an fd of shared memory at any time",
        not any(figures["fds"]) and not any(it["new_fds"] for it in fds),
        [figures["fds"], fds],
    )
    check(f"readers have fewer than {MAX_FDS} fds of all kinds", all(it["all_fds"] < MAX_FDS for it in fds), fds)
    check("deleted, the name is gone", not trainer.ask("delete")["left"])
    trainer.end()
    bench.comes_back("given back by all, with the readers still there", with_readers)
    status = bench.status()
    left = {name: status[name]["now"] for name in ("allocations", "open_leases", "mapped_leases", "object_names")}
    check("nothing is left in the broker", not any(left.values()), left)
    check(f"never more than {MAX_FDS} fds on the node", status["fds"]["peak"] <= MAX_FDS, status["fds"])
    for reader in readers:
        reader.end()
    bench.comes_back("at the end", before)
    figures["node fds"] = status["fds"]["peak"]


def directly(bench):
    before = bench.used_mib()
    process = Process(bench, "direct", "--readers", bench.options.readers, "--updates", bench.options.direct_updates, fds=DIRECT_FDS)
    found = process.hear()
    process.end()
    bench.book.check("torch.multiprocessing, directly: every tensor is right", not found["wrong"] and not any(found["exit"]), found)
    bench.comes_back("torch.multiprocessing, directly", before)
    return found


def table(options, figures, found):
    def ms(seconds):
        return f"{statistics.median(seconds) * 1000:.1f} ms"

    gib = options.tensors * options.mib / 1024
    print(f"\n{gib:g} GiB in {2 * options.tensors} tensors, {options.readers} readers, medians")
    rows = [
        ("by name: put (allocate, copy, seal); the first", f"{ms(figures['put'])}; {figures['put'][0] * 1000:.1f} ms"),
        ("by name: get, in a reader; the first", f"{ms(figures['get'])}; {max(figures['get'][: options.readers]) * 1000:.1f} ms"),
        ("by name: get, in the trainer that was started again", ms(figures["load"])),
        ("by name: fds on the node, at most; new ones in a process", f"{figures['node fds']}; {max(figures['fds'])}"),
    ]
    if found:
        rows += [
            ("directly: clone; pickle for all readers", f"{ms([found['clone']])}; {ms([found['share']])}"),
            ("directly: unpickle, the slowest reader", ms([found["open"]])),
            ("directly: new fds in a reader", str(found["new_fds"])),
        ]
    for name, figure in rows:
        print(f"{name:<60}{figure}")
    print(json.dumps({"part": "states", "gib": gib, **figures, "direct": found}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=16, help="size of the state dict [16]")
    parser.add_argument("--tensors", type=int, default=128, help="large tensors in it; as many small ones are added [128]")
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--updates", type=int, default=10, help="versions before the trainer is killed [10]")
    parser.add_argument("--direct-updates", type=int, default=3, help="versions by torch.multiprocessing; 0: none [3]")
    parser.add_argument("--seconds", type=float, default=140, help="the bound of everything [140]")
    parser.add_argument("--stand-in", action="store_true", help="the driver is tests/cuda_stub, and PyTorch knows no CUDA")
    parser.add_argument("--no-namespaces", action="store_true", help="readers stay in this PID namespace")
    options = parser.parse_args()
    options.mib = max(int(options.gib * 1024 / options.tensors), 1)
    # Contexts and caches of a driver take some; the stand-in has none.
    options.mib_back = 0 if options.stand_in else MIB_BACK
    bench = Bench(options)
    figures, found = {"put": [], "get": [], "fds": []}, None
    try:
        by_name(bench, figures)
        if options.direct_updates:
            found = directly(bench)
        table(options, figures, found)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        bench.book.check("everything is done", False, error)
    finally:
        for process in bench.processes:
            process.kill()
        bench.broker.close()
    print(f"{bench.book.passed} passed, {bench.book.failed} failed")
    return 1 if bench.book.failed else 0


if __name__ == "__main__":
    sys.exit(main())
