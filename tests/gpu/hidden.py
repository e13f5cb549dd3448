#!/usr/bin/env python3
"""A trainer that sees two GPUs, and two engines that see one each, as their 0: every byte right, on the right GPU.

Run by multi.sh on two GPUs, and by tests/cuda_stub/run.sh against the stand-in. Needs the package fdbroker (PYTHONPATH,
FDBROKER_LIBRARY) and libcuda.so.1. Ends with `N passed, N failed`. Must never use PyTorch: nothing else may choose a device."""

import ctypes
import json
import os
import subprocess
import sys
import traceback

import fdbroker

BYTES, SOON_S = 8 << 20, 60
cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code != 0:
        raise RuntimeError(f"{name}: CUresult {code}")


def enter(device):
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxPushCurrent_v2", context)


def put(pointer, data):
    call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))
    call("cuStreamSynchronize", None)


def get(pointer, count):
    data = ctypes.create_string_buffer(count)
    call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), ctypes.c_size_t(count))
    return data.raw


def uuid_of(device):
    found = ctypes.create_string_buffer(16)
    call("cuDeviceGetUuid_v2", found, device)
    text = found.raw.hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def pattern(gpu, version):
    return bytes((index * 7 + 31 * gpu + 101 * version) & 255 for index in range(4096)) * (BYTES // 4096)


def engine(socket):
    """What comes of opening: [device, whether the bytes are right] or the error's text."""
    enter(0)
    print(json.dumps(uuid_of(0)), flush=True)
    for line in sys.stdin:
        handle, device, gpu, version = json.loads(line)
        # A connection opens each allocation once: for each device one of its own.
        with fdbroker.connect(socket) as broker:
            try:
                with broker.open(bytes.fromhex(handle), device=device, writable=True) as memory:
                    is_right = get(memory.pointer, BYTES) == pattern(gpu, version)
                    put(memory.pointer, pattern(gpu, version + 1))
                    print(json.dumps([memory.device, is_right]), flush=True)
            except fdbroker.NotSupported as error:
                print(json.dumps(str(error)), flush=True)


class Engine:
    def __init__(self, socket, visible):
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": visible}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "engine", socket], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.uuid = json.loads(self.process.stdout.readline())

    def open(self, handle, device, gpu, version):
        print(json.dumps([bytes(handle).hex(), device, gpu, version]), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        return self.process.wait(SOON_S)


def same(found, wanted):
    assert found == wanted, f"{found!r} instead of {wanted!r}"


def main():
    passed = failed = 0
    call("cuInit", 0)
    broker = fdbroker.private_broker()
    made, uuids = [], [uuid_of(0), uuid_of(1)]
    for gpu in (0, 1):
        enter(gpu)
        made.append(broker.empty(BYTES, device=f"cuda:{gpu}"))
    # Seen by number and by name, in this order of the engines.
    for how, seen in (("by number", ["0", "1"]), ("by UUID", uuids)):
        engines = [Engine(broker.socket, visible) for visible in seen]
        peers = [ctypes.c_int(-1), ctypes.c_int(-1)]
        for gpu in (0, 1):
            call("cuDeviceCanAccessPeer", ctypes.byref(peers[gpu]), 1 - gpu, gpu)
        for gpu, one in enumerate(engines):
            name = f"engine {gpu}, which sees its GPU alone, {how}"
            try:
                for which, version in ((gpu, 1), (1 - gpu, 5)):
                    enter(which)
                    put(made[which].pointer, pattern(which, version))
                same(one.uuid, uuids[gpu])
                same(one.open(made[gpu].handle, None, gpu, 1), ["cuda:0", True])
                enter(gpu)
                assert get(made[gpu].pointer, BYTES) == pattern(gpu, 2), "what the engine wrote is not in the trainer's memory"
                hidden = one.open(made[1 - gpu].handle, None, 1 - gpu, 5)
                for words in (uuids[1 - gpu], f"0 is {uuids[gpu]}", "CUDA_VISIBLE_DEVICES"):
                    assert isinstance(hidden, str) and words in hidden, f"no {words} in {hidden!r}"
                asked = one.open(made[1 - gpu].handle, "cuda:0", 1 - gpu, 5)
                if peers[1 - gpu].value:
                    same(asked, ["cuda:0", True])
                    enter(1 - gpu)
                    assert get(made[1 - gpu].pointer, BYTES) == pattern(1 - gpu, 6), "what the engine wrote from afar is not there"
                else:
                    assert isinstance(asked, str), asked
                enter(gpu)
                assert get(made[gpu].pointer, BYTES) == pattern(gpu, 2), "opening the other GPU's memory changed this one's"
                missing = one.open(made[gpu].handle, "cuda:1", gpu, 2)
                assert isinstance(missing, str) and "no device 1" in missing, missing
                passed += 1
                print("ok      ", name)
            except Exception:
                failed += 1
                print("FAILED  ", name)
                traceback.print_exc(file=sys.stdout)
        for one in engines:
            same(one.end(), 0)
    for memory in made:
        memory.close()
    broker.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(engine(sys.argv[2]) if sys.argv[1:2] == ["engine"] else main())
