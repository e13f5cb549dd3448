#!/usr/bin/env python3
"""Measures what an opening of a Level Zero handle costs a consumer, with the test driver alone and under the layer, and prints a
table of ratios: zeMemOpenIpcHandle and zeMemCloseIpcHandle of 200 different buffers (by value), the same with pidfd_open,
pidfd_getfd and close (pidfd), and of one buffer 200 times (reopened). All processes on one core; medians of rounds in turns.
`chrt -r 1` before it keeps a busy machine's other work away. Must never pass for a test: a time depends on the machine.

usage: tests/level_zero/measure.py [BUILT [ROUNDS]]     BUILT: cargo's folder of a release build (target/release); ROUNDS: 7"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

TARGETS = {"by value": 1.4, "pidfd": 1.5, "by value, reopened": 1.1, "pidfd, reopened": 1.1}
# The driver alone opens a handle by value when it is opaque, and one with a fetched fd in either form.
FORM = {"ZE_TEST_DRIVER_HANDLES": "opaque"}


def times(command, variables):
    """The microseconds of each way."""
    pinned = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] + command
    out = subprocess.run(pinned, env=os.environ | variables, stdout=subprocess.PIPE, check=True, text=True).stdout
    lines = (line.rpartition(": ") for line in out.splitlines())
    return {name: float(us) for name, _, us in lines}


def main():
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__)
        return
    built = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2] / "target/release").resolve()
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    program, layer = str(built / "ze-test-unmodified"), [str(built / "fdbroker"), "run", "--level-zero", "--"]
    variables = FORM | {"ZE_ENABLE_ALT_DRIVERS": str(built / "libfdbroker_ze_test_driver.so")}
    alone, under = [], []
    for _ in range(rounds):
        alone.append(times([program, "measure"], variables))
        under.append(times(layer + [program, "measure"], variables))
    print("| opening | driver alone, us | layer, us | ratio | target |\n|---|---|---|---|---|")
    for name, target in TARGETS.items():
        direct, ours = (statistics.median(one[name] for one in all) for all in (alone, under))
        print(f"| {name} | {direct:.1f} | {ours:.1f} | {ours / direct:.2f} | {target} |")


if __name__ == "__main__":
    main()
