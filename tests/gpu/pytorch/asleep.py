"""An inference engine's sleep: all device memory is unmapped and released after a consumer has opened it, or while it has, and made and mapped again
at the same address. Knows nothing of fdbroker. Prints one line of JSON. Must never wait without a bound.
"""

import os
import statistics
import time

from cumem import Chunks, Driver, Second, comes_true, play
from fds import nvidia_fds
from lines import say

CHUNKS, SIZE, ROUNDS = 64, 20 << 20, 16
# In the first ones every byte is looked at; the others are there for the times, whose medians of four differ by a fifth.
CHECKED = 4
# What the driver may take for itself meanwhile.
SLACK = 64 << 20


class Consumer:
    """Opens all that another process has exported, and looks at every byte when it is told what they are."""

    def __init__(self):
        self.chunks = Chunks(Driver(), CHUNKS, SIZE)

    def act(self, do, pid=0, numbers=(), seed=None):
        if do == "open":
            begin = time.perf_counter()
            self.chunks.map([self.chunks.driver.taken(pid, number) for number in numbers])
            opened_us = (time.perf_counter() - begin) * 1e6 / len(numbers)
            return {"wrong": self.wrong(seed), "open_us": opened_us}
        if do == "look":
            return {"wrong": self.wrong(seed)}
        self.chunks.drop()
        return {"wrong": 0}

    def wrong(self, seed):
        return 0 if seed is None else self.chunks.wrong(seed)


def own():
    consumer, driver = Second(), Driver()
    consumer.ask(do="drop")
    chunks, wrong, times, back = Chunks(driver, CHUNKS, SIZE), 0, {"sleep_us": [], "wake_us": [], "open_us": []}, []
    fds_before, fds, before = nvidia_fds(), 0, driver.free_bytes()

    def timed(name, call):
        begin = time.perf_counter()
        call()
        times[name].append((time.perf_counter() - begin) * 1e6 / CHUNKS)

    def heard(**order):
        answer = consumer.ask(**order)
        if "error" in answer:
            raise RuntimeError(f"the consumer, {order['do']}: {answer['error']}")
        return answer

    def sleep():
        for number in numbers:
            os.close(number)
        chunks.drop()

    for turn in range(ROUNDS):
        seed = 1 + turn * CHUNKS if turn < CHECKED else None
        timed("wake_us", chunks.create)
        if seed is not None:
            chunks.fill(seed)
        numbers = [driver.export(handle) for handle in chunks.handles]
        fds = max(fds, nvidia_fds() - fds_before)
        opened = heard(do="open", pid=os.getpid(), numbers=numbers, seed=seed)
        times["open_us"].append(opened["open_us"])
        wrong += opened["wrong"] + (0 if seed is None else chunks.wrong(seed))
        if turn % 2:
            timed("sleep_us", sleep)
            wrong += heard(do="look", seed=seed)["wrong"]
            heard(do="drop")
        else:
            heard(do="drop")
            timed("sleep_us", sleep)
        back.append(comes_true(lambda: driver.free_bytes() + SLACK >= before))
    figures = {name: round(statistics.median(values), 1) for name, values in times.items()}
    is_back = None not in back
    say({"role": "asleep", "wrong": wrong, "back": is_back, "back_ms": is_back and max(back), **figures, "exit": consumer.end(),
         "new_nvidia_fds": fds})
    return 0 if not wrong and is_back else 1


if __name__ == "__main__":
    raise SystemExit(play(__doc__, own, Consumer))
