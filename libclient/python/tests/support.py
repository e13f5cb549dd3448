"""What the tests share: brokers, other processes, counts of fds and mappings. Must never wait without an end."""

import fcntl
import os
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

import fdbroker

try:
    import numpy
except ImportError:
    numpy = None

#: The folder of the stand-in for the CUDA driver; test.sh builds it.
STUB = os.environ.get("FDBROKER_TEST_CUDA_STUB")
#: Seconds that only a hang exceeds, on a busy machine.
SOON_S = 60.0

needs_numpy = unittest.skipIf(numpy is None, "numpy is not installed here; the second run of test.sh has it")


class BrokerCase(unittest.TestCase):
    """Each test has a broker of its own, and a connection to it."""

    #: Options of private_broker. A process may get no processor for seconds, and must not count as silent.
    options = {"max_fds": 256, "settings": {"limits.recall_timeout_ms": 600000}}

    def setUp(self):
        self.broker = fdbroker.private_broker(**self.options)
        self.addCleanup(self.broker.close)
        # A second one in this process: a consumer.
        self.other = fdbroker.connect(self.broker.socket)
        self.addCleanup(self.other.close)

    def ledger(self, name):
        """A number of the broker's ledger, such as mapped_leases."""
        import json

        text = run_program(self.broker, "status", "--json")
        return json.loads(text)[name]["now"]

    def is_empty(self):
        """Whether the broker has nothing of anybody."""
        return all(self.ledger(name) == 0 for name in ("allocations", "object_names", "held_fds", "parked_requests"))

    def eventually(self, condition):
        """One-way messages have no answer to wait for."""
        until = time.monotonic() + SOON_S
        while not condition() and time.monotonic() < until:
            time.sleep(0.01)
        self.assertTrue(condition())


# What a script knows of the driver: copies, by ctypes.
PRELUDE = """
import ctypes, fdbroker, gc, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)
def enter(device=0):
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxPushCurrent_v2", context)
def put(pointer, data):
    call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))
    call("cuStreamSynchronize", None)
def get(pointer, count, device=None):
    # The driver copies for the current context's GPU alone, if that reaches the memory.
    if device is not None:
        enter(device)
    data = ctypes.create_string_buffer(count)
    call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), ctypes.c_size_t(count))
    if device is not None:
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
    return data.raw
"""


@unittest.skipIf(STUB is None, "FDBROKER_TEST_CUDA_STUB is not set; test.sh builds the stand-in where there is a C compiler")
class StandInCase(unittest.TestCase):
    """Scripts in processes of their own, with the stand-in for the CUDA driver. Each begins with PRELUDE and ends with print("end")."""

    def run_script(self, text, **environment):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
            status, out, err = script(
                PRELUDE + text, FDBROKER_CUDA_STUB_DIR=memory, LD_LIBRARY_PATH=STUB, LD_PRELOAD=os.path.join(STUB, "looks.so"),
                # Their brokers are private, which test_objects has said.
                PYTHONWARNINGS="ignore:kept and pinned objects end with this broker", **environment,
            )  # fmt: skip
            self.assertEqual((status, out, err), (0, "end\n", ""), out + err)
            # Whoever has memory of the card has a lock on its file (tests/cuda_stub/card.h).
            for name in os.listdir(memory):
                with open(os.path.join(memory, name)) as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def run_program(broker, *arguments):
    """The output of the command fdbroker with this broker."""
    command = [sys.executable, "-m", "fdbroker", *arguments]
    environment = {**os.environ, **broker.environment}
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=SOON_S, text=True).stdout


def script(text, *arguments, **environment):
    """Runs Python code in a process of its own: (exit status, stdout, stderr)."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)], env={**os.environ, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=SOON_S,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def in_child(act):
    """The exit status of a forked child that runs `act`; 0 when it returned True. It ends without exit handlers."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if act() is True else 2
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def open_fds():
    """This process's open fds, those of the listing left out."""
    return len(os.listdir("/proc/self/fd")) - 1


def mappings():
    """This process's mappings of memfds."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:" in line for line in maps)
