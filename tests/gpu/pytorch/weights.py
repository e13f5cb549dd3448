"""Weights for eight processes of one GPU: by name through fdbroker, where all read the same memory, and from a file (safetensors) in memory, of
which each makes a copy. Prints one line of JSON. Must never call a way right whose bytes nobody has compared.
"""

import os
import statistics
import tempfile
import time

from cumem import Second, play
from fds import nvidia_fds
from lines import say

NAME, TENSORS, ELEMENTS, PROCESSES, ROUNDS = "weights", 64, 32 << 20, 8, 3
PATIENCE_S = 60.0


def sums(found):
    """A checksum of each tensor's bytes."""
    import torch

    return {name: int(tensor.view(torch.int32).sum(dtype=torch.int64)) for name, tensor in found.items()}


class Reader:
    """One of the processes."""

    def __init__(self):
        import fdbroker
        import fdbroker.torch
        import torch

        torch.zeros(1, device="cuda")
        self.torch, self.by_name, self.broker, self.found = torch, fdbroker.torch, fdbroker.connect(), {}
        self.fds_before = nvidia_fds()

    def act(self, do, path="", expected=None):
        torch, begin = self.torch, time.perf_counter()
        if do == "name":
            self.found = self.by_name.get_state_dict(NAME, self.broker, device="cuda", timeout=PATIENCE_S)
        elif do == "file":
            from safetensors.torch import load_file

            self.found = load_file(path, device="cuda")
        elif do == "look":
            return {"wrong": int(sums(self.found) != expected), "fds": nvidia_fds() - self.fds_before}
        else:
            self.found = {}
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            return {}
        torch.cuda.synchronize()
        return {"ms": (time.perf_counter() - begin) * 1e3}


def own():
    import fdbroker
    import fdbroker.torch
    import torch

    try:
        from safetensors.torch import save_file
    except ImportError:
        save_file = None
    broker, readers = fdbroker.connect(), [Second() for _ in range(PROCESSES)]

    def everybody(**order):
        for reader in readers:
            reader.tell(**order)
        answers = [reader.hear() for reader in readers]
        errors = [it["error"] for it in answers if "error" in it]
        if errors:
            raise RuntimeError(f"{order['do']}: {errors[0]}")
        return answers

    everybody(do="drop")
    torch.manual_seed(7)
    made = {f"layer{number}": torch.randn(ELEMENTS, device="cuda") for number in range(TENSORS)}
    expected, wrong, figures, fds = sums(made), 0, {}, []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = os.path.join(folder, "weights.safetensors")
        if save_file:
            save_file({name: tensor.cpu() for name, tensor in made.items()}, path)
        empty, _ = torch.cuda.mem_get_info()
        fdbroker.torch.put_state_dict(NAME, made, broker, timeout=PATIENCE_S)
        for way in ["name", "file"] if save_file else ["name"]:
            times = []
            for turn in range(ROUNDS):
                times += [it["ms"] for it in everybody(do=way, path=path)]
                if turn == 0:
                    # A sum takes memory of its own.
                    figures[f"{way}_gib"] = round((empty - torch.cuda.mem_get_info()[0]) / 2**30, 2)
                    looks = everybody(do="look", expected=expected)
                    wrong, fds = wrong + sum(it["wrong"] for it in looks), [it["fds"] for it in looks]
                everybody(do="drop")
            figures[f"{way}_us"] = round(statistics.median(times) * 1e3)
            if way == "name":
                broker.delete(NAME)
                made.clear()
                torch.cuda.empty_cache()
                empty, _ = torch.cuda.mem_get_info()
    broker.close()
    ended = [reader.end() for reader in readers]
    gib = TENSORS * ELEMENTS * 4 / 2**30
    say({"role": "weights", "wrong": wrong, "gib": gib, "processes": PROCESSES, **figures, "new_nvidia_fds": max(fds), "exit": ended,
         "without": None if save_file else "safetensors"})
    return int(bool(wrong or any(ended)))


if __name__ == "__main__":
    raise SystemExit(play(__doc__, own, Reader))
