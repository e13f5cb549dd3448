"""A program that uses PyTorch, of which fdbroker knows nothing, and fdbroker's own library: each has its own connection.
Prints one line of JSON. Must never wait without a bound.
"""

import argparse
import ctypes
import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
os.environ["TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC"] = "1"

import torch  # noqa: E402: the variables above come first
import torch.multiprocessing as mp  # noqa: E402

from fds import limit_fds, nvidia_fds  # noqa: E402
from lines import say  # noqa: E402
from rank import PATIENCE_S  # noqa: E402

BYTES = 4096
TIMEOUT_MS = 10_000
# FDBROKER_HOST_ARENA and FDBROKER_IMPORT_READ of fdbroker.h.
ARENA, READ = 0, 1


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 64)]


class Import(ctypes.Structure):
    """fdbroker_import_t: its first field is the address; the rest is the library's."""

    _fields_ = [("ptr", ctypes.c_void_p), ("rest", ctypes.c_uint8 * 248)]


class Library:
    def __init__(self, path):
        self.calls = ctypes.CDLL(path)
        self.calls.fdbroker_last_error.restype = ctypes.c_char_p
        self.broker = ctypes.c_void_p()
        self.must(self.calls.fdbroker_open(None, ctypes.byref(self.broker)))

    def must(self, code):
        if code:
            raise RuntimeError(self.calls.fdbroker_last_error().decode())

    def alloc(self, text):
        memory, handle = ctypes.c_void_p(), Handle()
        self.must(self.calls.fdbroker_host_alloc(
            self.broker, ARENA, ctypes.c_size_t(BYTES), TIMEOUT_MS, ctypes.byref(memory), ctypes.byref(handle)))
        ctypes.memmove(memory, text, len(text))
        return bytes(handle.bytes)

    def read(self, handle, length):
        seen, wanted = Import(), Handle((ctypes.c_uint8 * 64)(*handle))
        self.must(self.calls.fdbroker_import(self.broker, ctypes.byref(wanted), READ, TIMEOUT_MS, ctypes.byref(seen)))
        text = ctypes.string_at(seen.ptr, length)
        self.must(self.calls.fdbroker_import_release(self.broker, ctypes.byref(seen)))
        return text

    def close(self):
        self.must(self.calls.fdbroker_close(self.broker))


def work(path, fds, tasks, answers):
    limit_fds(fds)
    library = Library(path)
    for tensor, handle, text in iter(lambda: tasks.get(timeout=PATIENCE_S), None):
        is_right = bool((tensor == 3).all()) and library.read(handle, len(text)) == text
        del tensor
        answers.put(is_right)
    library.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="libfdbroker.so.0")
    parser.add_argument("--fds", type=int, required=True, help="RLIMIT_NOFILE of each process")
    args = parser.parse_args()
    limit_fds(args.fds)
    torch.zeros(1, device="cuda")
    before = nvidia_fds()
    library = Library(args.library)
    context = mp.get_context("spawn")
    tasks, answers = context.Queue(), context.Queue()
    worker = context.Process(target=work, args=(args.library, args.fds, tasks, answers))
    worker.start()
    wrong, held = 0, []
    for number in range(16):
        held.append(torch.full((100 << 18,), 3.0, device="cuda"))
        text = f"host memory {number}".encode()
        tasks.put((held[-1], library.alloc(text), text))
        wrong += not answers.get(timeout=PATIENCE_S)
    tasks.put(None)
    worker.join(PATIENCE_S)
    say({"role": "both", "wrong": wrong, "exit": [worker.exitcode], "new_nvidia_fds": nvidia_fds() - before})
    library.close()
    return 1 if wrong or worker.exitcode else 0


if __name__ == "__main__":
    raise SystemExit(main())
