#!/usr/bin/env python3
"""Runs every test of the project, side by side, and ends with the line `N passed, N failed`. Must never skip in silence: a part
that this machine cannot run is named as not run, and counts as failed when CI is set. tests/run.sh is the command."""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import programs

ROOT = programs.ROOT
IS_ROOT = os.geteuid() == 0
IS_CI = bool(os.environ.get("CI"))
# The slowest part takes half an hour on two busy cores with other parts beside it. A part that takes this long hangs.
PART_LIMIT_S = 7200
# One more than the cores: most parts wait now and then.
SLOTS = (os.cpu_count() or 1) + 1
# Lines shown of the log of a failed part.
LOG_LINES = 100
NOT_RUN_STATUS = 77

# A user without root makes the systemd guest in a user namespace.
VM = ("qemu-system-x86_64", "busybox", "cpio", "xz", "zstd", "mmdebstrap") + (() if IS_ROOT else ("newuidmap",))
PACKAGES = ("dh", "lintian", "rpmbuild", "debugedit", "eu-strip", "rpmlint", "mmdebstrap", "cpio", "busybox", "checkmodule",
            "semodule_package")
LEVEL_ZERO = ("/usr/lib/x86_64-linux-gnu/libze_loader.so.1",)


@dataclass
class Part:
    """`command` prints test programs' `test result:` lines or a last line `N passed, N failed`; else it counts as one test."""
    name: str
    command: list
    needs: tuple = ()
    cwd: str = str(ROOT)

    def is_emulated(self):
        """Whether it starts virtual machines. At most one runs per core: emulated processors that share a core wait for each other."""
        return "qemu-system-x86_64" in self.needs


def suites(folder):
    """Everything but the test programs of the packages; the longest first, so that the cores are used to the end."""
    demo = ["tests/demo.sh", folder + "/fdbroker", "demo", "--json"]
    return [
        # Packages take root, and are installed as install.sh does it.
        Part("virtual machine: packages as a service of systemd, upgrade under load", ["packaging/test.sh", "--vm"], VM + PACKAGES)
        if IS_ROOT else Part("virtual machine: the broker as a service of systemd", ["tests/vm/systemd.sh", "-s", "bookworm"], VM),
        Part("virtual machine: Level Zero on real dma-bufs", ["tests/level_zero/run.sh", "--vm"], VM + LEVEL_ZERO),
        Part("virtual machine: end to end on real dma-bufs, where the kind of memory matters", ["tests/vm/e2e.sh", "--sample"], VM),
        Part("virtual machine: end to end on the stock kernel of Debian 12 (6.1), a sample",
             ["tests/vm/e2e.sh", "--kernel", "6.1", "--sample"], VM),
        Part("style: format, clippy, documentation, layers, scripts", ["tests/style.sh"]),
        Part("fuzz: regressions and a short run", ["tests/fuzz/run.sh", "--seconds", "2"]),
        Part("simulator: each promise of the core broken on purpose, a sample", ["tests/sim/mutations.sh", "--sample", "6"]),
        Part("Level Zero: bindings, driver and layer under two loaders", ["tests/level_zero/run.sh"], LEVEL_ZERO),
        Part("C ABI: C and C++ programs, and these under valgrind", ["tests/capi/run.sh"]),
        Part("virtual machine: audit of real dma-bufs", ["tests/audit/run.sh", "--vm"], VM),
        Part("virtual machine: the recipe itself", ["tests/vm/selftest.sh", "--quick"], VM),
        Part("hostile clients beside a good one", ["tests/hostile/run.sh", "--quick"]),
        Part("objects: named, sealed, kept", ["tests/objects/run.sh"]),
        Part("audit: leaks planted, each named", ["tests/audit/run.sh"]),
        Part("simulator", ["tests/sim/run.sh", "--steps", "500000"]),
        Part("packages: deb and rpm, image, manifests", ["packaging/test.sh"], PACKAGES),
        Part("MPI: Slurm's srun, 4 ranks", ["tests/mpi/slurm.sh", "4"]),
        Part("MPI: Open MPI, 4 ranks", ["tests/mpi/run.sh", "openmpi", "4"]),
        Part("MPI: MPICH, 4 ranks", ["tests/mpi/run.sh", "mpich", "4"]),
        Part("virtual machine: demo on real dma-bufs", ["tests/demo.sh", "tests/vm/run.sh", folder + "/fdbroker", "demo", "--memory",
             "udmabuf", "--ranks", "4", "--buffers", "50", "--max-fds", "64", "--json"], VM),
        Part("top: a real terminal (tmux)", ["tests/top/run.sh"]),
        Part("containers: ranks and daemons in namespaces", ["tests/container/run.sh"]),
        Part("CUDA: library, broker, layer and demo against a stand-in for the driver", ["tests/cuda_stub/run.sh"]),
        Part("plain user: no rights, and at most 1,024 fds", ["tests/plain.py"]),
        Part("view: who sees and may do what on a node service", ["tests/view/run.sh"]),
        Part("virtual fds: C programs that know nothing of fdbroker", ["tests/virtual_fds/run.sh"]),
        Part("fork: what children see of their parent's memory", ["tests/fork/run.sh"]),
        Part("closed-fds: programs that close the library's fds, in C, in Python and under the layers", ["tests/closed_fds/run.sh"]),
        Part("Python: the wheel installed, alone and beside numpy and PyTorch", ["libclient/python/test.sh"]),
        Part("installation, pkg-config, examples", ["tests/install/run.sh"]),
        Part("documentation's examples", ["cargo", "test", "--workspace", "--doc", "--quiet"]),
        Part("demo: 4 ranks, every byte, below the cap", demo),
        Part("demo: 8 ranks, every byte, below the cap", demo + ["--ranks", "8", "--buffers", "200", "--max-fds", "256"]),
    ]


def packages(built):
    """The test programs that `cargo test` runs. The simulator and the hostile clients are suites, and so are the objects of e2e."""
    tests = [test for test in built["tests"] if test["name"] not in ("sim", "hostile")]
    others = lambda test: ["--skip", "objects::"] if test["name"] == "e2e" else []
    parts = [Part("package %(package)s: %(name)s" % test, [test["path"], "--quiet"] + others(test), cwd=test["cwd"])
             for test in tests]
    is_long = lambda part: part.name.endswith((": it", ": e2e"))
    return sorted(parts, key=lambda part: not is_long(part))


class Run:
    """The parts as they run, and what came of them."""

    def __init__(self, logs):
        self.logs = logs
        self.lock = threading.Lock()
        self.passed = self.failed = 0
        self.not_run, self.times, self.groups = [], [], set()
        self.began = time.monotonic()

    def say(self, text):
        print("[%4d s] %s" % (time.monotonic() - self.began, text), flush=True)

    def part(self, number, part):
        missing = [need for need in part.needs if not (os.path.exists(need) if "/" in need else shutil.which(need))]
        if missing:
            with self.lock:
                self.not_run.append("%s: %s not installed; run: sudo tests/install.sh" % (part.name, ", ".join(missing)))
            return
        log = self.logs / ("part-%d" % number)
        began = time.monotonic()
        with open(log, "wb") as out:
            child = subprocess.Popen(part.command, cwd=part.cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                     start_new_session=True)
        with self.lock:
            self.groups.add(child.pid)
        timer = threading.Timer(PART_LIMIT_S, end_group, [child.pid])
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        with self.lock:
            self.groups.discard(child.pid)
            self.judge(part, child.returncode, log, time.monotonic() - began, usage.ru_utime + usage.ru_stime)

    def judge(self, part, status, log, seconds, cpu_seconds):
        text = log.read_text(errors="replace")
        passed, failed, is_counted = count(text)
        if status == NOT_RUN_STATUS and passed + failed == 0:
            # The last line of such a part says what it needs.
            self.not_run.append("%s: %s" % (part.name, (text.splitlines() or ["it did not say why"])[-1]))
            return
        if not is_counted:
            passed, failed = (1, 0) if status == 0 else (0, 1)
        if status and not failed or passed + failed == 0 and not is_empty(text):
            # It died, or it ran nothing: a failure even when no test said so.
            failed += 1
        self.passed += passed
        self.failed += failed
        self.times.append((seconds, cpu_seconds, part.name))
        self.say("%s: %d passed, %d failed, %.0f s (%.0f s of processor)" % (part.name, passed, failed, seconds, cpu_seconds))
        if failed:
            print("---- %s: exit %s: %s" % (part.name, status, " ".join(part.command)))
            for line in interesting(text):
                print("    " + line)
            print("----", flush=True)

    def end_all(self):
        with self.lock:
            for group in self.groups:
                end_group(group)


def end_group(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


FAILURE = re.compile(r"test .*FAILED|FAILED|FAIL |---- |thread .* panicked|error")
RESULT = re.compile(r"^test result: .*?(\d+) passed; (\d+) failed;", re.M)
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed$", re.M)


def count(text):
    """passed, failed, and whether anything was counted: all `test result:` lines, and the last closing line."""
    results = [(int(p), int(f)) for p, f in RESULT.findall(text)]
    results += [(int(p), int(f)) for p, f in CLOSING.findall(text)[-1:]]
    return sum(p for p, _ in results), sum(f for _, f in results), bool(results)


def is_empty(text):
    """Whether it is a test program without a test."""
    return "running 0 tests" in text


def interesting(text):
    """The lines that name failures, with the indented ones above and below them (a reason, a screen, a state), and the end.

    What a panic says stands in the lines below it, up to 4, and is not indented.
    """
    lines, chosen, above = text.splitlines(), [], []
    is_named, of_panic = False, 0
    for line in lines:
        is_failure, is_indented = bool(FAILURE.match(line)), line.startswith("    ")
        if is_failure:
            chosen += above
        of_panic = 4 if "panicked at" in line else max(of_panic - 1, 0)
        is_named = is_failure or is_named and (is_indented or of_panic > 0)
        if is_named:
            chosen.append(line)
        above = above + [line] if is_indented and not is_named else []
    return chosen[:LOG_LINES] + ["..."] + lines[-LOG_LINES:]


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="tests/run.sh", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Builds the workspace once and runs every test, some side by side. The last line is `N passed, N failed`.\n"
        "As root it first installs the Debian packages that are missing (tests/install.sh); no root is needed, but then\n"
        "parts that lack a package are named as not run. With CI=true in the environment these count as failed.",
        epilog="CONTRIBUTING.md says how to run the tests of one change in seconds. Exit status: 0 when nothing failed.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="run only the parts whose name has one of these words")
    parser.add_argument("--list", action="store_true", help="print the names of the parts (builds the test programs first)")
    return parser.parse_args(arguments)


def main(arguments):
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="fdbroker-tests-") as logs:
        run = Run(Path(logs))
        if IS_ROOT and not options.list and subprocess.run(["tests/install.sh"], cwd=ROOT, stdin=subprocess.DEVNULL).returncode:
            # The parts that lack something name it.
            run.say("not everything could be installed; its message is above")
        if IS_CI:
            # Nothing is built a second time there, so what a second build would need is not written. It is part of what cargo
            # tells builds apart by: all parts must have the same.
            os.environ.setdefault("CARGO_INCREMENTAL", "0")
        began = time.monotonic()
        run.say("building")
        built = programs.build()
        run.times.append((time.monotonic() - began, 0.0, "build"))
        written, not_run_log = Path(logs) / "programs.json", Path(logs) / "not-run"
        written.write_text(json.dumps(built))
        not_run_log.touch()
        os.environ[programs.VARIABLE] = str(written)
        # Tests that need root or a kernel feature add a line here when they do not run (tests/common).
        os.environ["FDBROKER_NOT_RUN_LOG"] = str(not_run_log)
        parts = suites(built["folder"])
        # The long suites, then the packages, then what is short.
        parts[8:8] = packages(built)
        if options.words:
            parts = [part for part in parts if any(word.lower() in part.name.lower() for word in options.words)]
        if options.list:
            print("\n".join(part.name for part in parts))
            return 0
        run_all(run, parts)
        for line in not_run_log.read_text().splitlines():
            # Such a test returned early and was counted as passed.
            run.passed -= 1
            run.not_run.append(line)
        return report(run)


def run_all(run, parts):
    queue = list(enumerate(parts))
    emulators = threading.Semaphore(os.cpu_count() or 1)

    def take():
        """The next part that may start now. None is left to a worker when others run all the virtual machines that may run."""
        for at, (_, part) in enumerate(queue):
            if not part.is_emulated() or emulators.acquire(blocking=False):
                return queue.pop(at)
        return None

    def work():
        while True:
            with run.lock:
                taken = take()
                if not taken:
                    return
                number, part = taken
                run.say("started: " + part.name)
            run.part(number, part)
            if part.is_emulated():
                emulators.release()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(SLOTS)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        run.end_all()
        sys.exit(130)


def report(run):
    print("\nthe slowest parts (wall clock, processor):")
    for seconds, cpu_seconds, name in sorted(run.times, reverse=True)[:10]:
        print("%6.0f s %6.0f s  %s" % (seconds, cpu_seconds, name))
    print("%6.0f s in all\n" % (time.monotonic() - run.began))
    for line in run.not_run:
        print("not run: " + line)
    if IS_CI:
        run.failed += len(run.not_run)
    print("%d passed, %d failed" % (run.passed, run.failed))
    return int(run.failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
