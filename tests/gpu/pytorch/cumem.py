"""CUDA's virtual memory by ctypes, as programs that manage device memory themselves use it, and their second process, which fetches
fds by pidfd. Knows nothing of fdbroker. Must never need more than the standard library.
"""

import argparse
import ctypes
import faulthandler
import json
import os
import socket
import subprocess
import sys
import time
from ctypes import byref, c_int, c_size_t, c_uint64, c_ulonglong, c_void_p

from fds import limit_fds

PATIENCE_S = 60
POSIX_FD = 1
SYS_PIDFD_OPEN, SYS_PIDFD_GETFD = 434, 438


class Prop(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [("type", c_int), ("handles", c_int), ("location", c_int * 2), ("win32", c_void_p), ("flags", ctypes.c_ubyte * 8)]


def pattern(seed, size):
    return bytes((index * 7 + seed * 31 + (index >> 8) * (seed | 1)) & 255 for index in range(4096)) * (size // 4096)


class Driver:
    def __init__(self):
        self.library, context = ctypes.CDLL("libcuda.so.1"), c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", byref(context), 0)
        self("cuCtxPushCurrent_v2", context)

    def __call__(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result:
            raise RuntimeError(f"{name} answers {result}")

    def reserve(self, size):
        address = c_uint64()
        self("cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_ulonglong(0))
        return address.value

    def create(self, size):
        handle = c_ulonglong()
        self("cuMemCreate", byref(handle), c_size_t(size), byref(Prop(1, POSIX_FD, (1, 0))), c_ulonglong(0))
        return handle

    def map(self, address, size, handle):
        self("cuMemMap", c_uint64(address), c_size_t(size), c_size_t(0), handle, c_ulonglong(0))
        self("cuMemSetAccess", c_uint64(address), c_size_t(size), (c_int * 3)(1, 0, 3), c_size_t(1))

    def unmap(self, address, size, handle):
        self("cuMemUnmap", c_uint64(address), c_size_t(size))
        self("cuMemRelease", handle)

    def export(self, handle):
        number = c_int(-1)
        self("cuMemExportToShareableHandle", byref(number), handle, POSIX_FD, c_ulonglong(0))
        return number.value

    def taken(self, pid, number):
        """Memory that another process has exported."""
        libc, handle = ctypes.CDLL(None, use_errno=True), c_ulonglong()
        pidfd = libc.syscall(SYS_PIDFD_OPEN, pid, 0)
        fd = libc.syscall(SYS_PIDFD_GETFD, pidfd, number, 0)
        cause = os.strerror(ctypes.get_errno())
        os.close(pidfd)
        if fd < 0:
            raise RuntimeError(f"pidfd_getfd of {number}: {cause}")
        try:
            self("cuMemImportFromShareableHandle", byref(handle), c_void_p(fd), POSIX_FD)
        finally:
            os.close(fd)
        return handle

    def fill(self, address, seed, size):
        self("cuMemcpyHtoD_v2", c_uint64(address), pattern(seed, size), c_size_t(size))
        # The copy may still be underway: another process would see what was there before.
        self("cuStreamSynchronize", None)

    def shows(self, address, seed, size):
        seen = ctypes.create_string_buffer(size)
        self("cuMemcpyDtoH_v2", seen, c_uint64(address), c_size_t(size))
        return seen.raw == pattern(seed, size)

    def free_bytes(self):
        free, total = c_size_t(), c_size_t()
        self("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value


class Chunks:
    """Pieces of device memory side by side."""

    def __init__(self, driver, count, size):
        self.driver, self.count, self.size = driver, count, size
        base, self.handles = driver.reserve(count * size), []
        self.places = [base + index * size for index in range(count)]

    def map(self, handles):
        self.handles = handles
        for place, handle in zip(self.places, handles):
            self.driver.map(place, self.size, handle)

    def create(self):
        self.map([self.driver.create(self.size) for _ in range(self.count)])

    def fill(self, seed):
        for index, place in enumerate(self.places):
            self.driver.fill(place, seed + index, self.size)

    def wrong(self, seed):
        """How many have not the bytes that they should have."""
        return sum(not self.driver.shows(place, seed + index, self.size) for index, place in enumerate(self.places))

    def drop(self):
        for place, handle in zip(self.places, self.handles):
            self.driver.unmap(place, self.size, handle)
        self.handles = []


class Second:
    """A second process of the program, which takes orders by lines of JSON and answers each."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        self.process = subprocess.Popen([sys.executable, *sys.argv, "--second"], stdin=theirs, stdout=theirs)
        theirs.close()
        ours.settimeout(PATIENCE_S)
        self.lines = ours.makefile("rw")

    def ask(self, **order):
        self.tell(**order)
        return self.hear()

    def tell(self, **order):
        print(json.dumps(order), file=self.lines, flush=True)

    def hear(self):
        line = self.lines.readline()
        if not line:
            raise RuntimeError(f"the second process has ended: {self.process.wait(PATIENCE_S)}")
        return json.loads(line)

    def end(self):
        self.lines.close()
        return self.process.wait(PATIENCE_S)


def play(words, first, second):
    """The whole program: `second().act` answers the orders of `first()`."""
    parser = argparse.ArgumentParser(description=words)
    parser.add_argument("--fds", type=int, required=True, help="RLIMIT_NOFILE of each process")
    parser.add_argument("--second", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    limit_fds(args.fds)
    # The driver may never answer.
    faulthandler.dump_traceback_later(1.5 * PATIENCE_S)
    if not args.second:
        return first()
    role = second()
    for line in sys.stdin:
        try:
            answer = role.act(**json.loads(line))
        except (RuntimeError, OSError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    return 0


def comes_true(holds, seconds=5):
    """How long it takes, in ms; None: it does not."""
    begin = time.monotonic()
    while not holds():
        if time.monotonic() > begin + seconds:
            return None
        time.sleep(0.0005)
    return round((time.monotonic() - begin) * 1e3, 1)
