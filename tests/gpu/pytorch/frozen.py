"""A process that has exported memory is locked, checkpointed, restored and unlocked by cuCheckpoint. Knows nothing of fdbroker. Prints one line of
JSON: what each call answered, and which bytes are right afterwards. Must never wait without a bound.
"""

import ctypes
import os

from cumem import Chunks, Driver, Second, play
from fds import nvidia_fds
from lines import say

LOCK_MS = 10_000
COUNT, SIZE, SEED = 8, 20 << 20, 5
STEPS = ["Lock", "Checkpoint", "Restore", "Unlock"]


class Target:
    """The process that is checkpointed."""

    def __init__(self):
        self.driver, self.more = Driver(), []
        self.chunks = Chunks(self.driver, COUNT, SIZE)
        self.chunks.create()
        self.chunks.fill(SEED)
        self.before = nvidia_fds()

    def act(self, do):
        if do == "export":
            numbers = [self.driver.export(handle) for handle in self.chunks.handles]
            return {"pid": os.getpid(), "numbers": numbers, "new_nvidia_fds": nvidia_fds() - self.before}
        if do == "more":
            self.more.append(Chunks(self.driver, COUNT, SIZE))
            self.more[-1].create()
            self.more[-1].fill(SEED)
            return {"pid": os.getpid(), "numbers": [self.driver.export(handle) for handle in self.more[-1].handles]}
        return {"wrong": self.chunks.wrong(SEED)}


def opened(driver, answer):
    """Whether all that was exported can be opened and is right, or why not."""
    chunks = Chunks(driver, COUNT, SIZE)
    try:
        if "error" in answer:
            raise RuntimeError(answer["error"])
        chunks.map([driver.taken(answer["pid"], number) for number in answer["numbers"]])
        wrong = chunks.wrong(SEED)
        chunks.drop()
        return f"{wrong} wrong" if wrong else "right"
    except (RuntimeError, OSError) as error:
        return str(error)


def control():
    driver = Driver()
    if not hasattr(driver.library, "cuCheckpointProcessLock"):
        say({"role": "frozen", "not_run": "libcuda.so.1 has no cuCheckpointProcessLock (it came with CUDA 12.8)"})
        return 0
    target = Second()
    exported = target.ask(do="export")
    fds = exported.get("new_nvidia_fds", 0)
    found, free = {"before": opened(driver, exported)}, driver.free_bytes()
    lock = (ctypes.c_uint * 16)(LOCK_MS)
    for step in STEPS:
        found[step] = getattr(driver.library, f"cuCheckpointProcess{step}")(target.process.pid, lock if step == "Lock" else None)
        if found[step]:
            break
        if step == "Checkpoint":
            found["freed_mib"] = (driver.free_bytes() - free) >> 20
    else:
        found["its own"] = target.ask(do="look")
        found["what was exported"] = opened(driver, exported)
        found["exported again"] = opened(driver, target.ask(do="export"))
        found["exported for the first time"] = opened(driver, target.ask(do="more"))
    if any(found.get(step) for step in STEPS):
        # It may be locked, and not end by itself.
        target.process.kill()
    found["exit"] = target.end()
    say({"role": "frozen", **found, "new_nvidia_fds": fds})
    return 0


if __name__ == "__main__":
    raise SystemExit(play(__doc__, control, Target))
