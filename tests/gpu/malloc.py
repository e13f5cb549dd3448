#!/usr/bin/env python3
"""Memory of cudaMalloc and CUDA's own IPC calls, with the driver alone and by `fdbroker run --cuda=malloc`: what the driver says of it
has to be the same, row by row, and the times are beside each other. Ends with `N passed, N failed`.

Needs in FOLDER `fdbroker` and `libfdbroker_cuda.so`, and libcuda.so.1. Must never know what CUDA answers: the direct run says it.
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path

# Pieces in bytes: no multiple of the driver's steps, and the sizes that are timed.
BIG, SMALL, MIB = (4 << 20) + 100, 1 << 20, 1 << 20
TIMED_MIB = (2, 64, 1024)
ROUNDS, PATIENCE_S = 30, 200
# us that no comparison sees; times direct's are a hang, and no busy machine.
SLACK_US, HANGS = 15, 10
LAZY, GLOBAL, RELAXED, SYNC_MEMOPS = 1, 0, 2, 6
# Rows that the layer refuses by name (docs/unmodified.md): what it answers.
REFUSED = {"facts: sync_memops": [801, 0, 0]}
# Of the ratio of the layer's time to the direct one, shown beside it. The first share has its own in PyTorch (2.5; pytorch/run.py): the
# bare call of the driver makes nothing.
TARGETS = {"alloc": 1.1, "share again": 1.1, "open": 1.5, "open again": 1.1}
# Enough for all memory of a device to be cleared, at 1 ms a GiB.
SETTLED_S = 0.3

cuda = None


def load():
    global cuda
    cuda = ctypes.CDLL("libcuda.so.1")


def code(name, *arguments):
    """The CUresult; None: this driver has no such call."""
    return getattr(cuda, name)(*arguments) if hasattr(cuda, name) else None


def call(name, *arguments):
    answer = code(name, *arguments)
    if answer != 0:
        raise RuntimeError(f"{name}: CUresult {answer}")


def enter(device=0):
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxPushCurrent_v2", context)
    return context


def address(value):
    return ctypes.c_uint64(value)


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


def try_alloc(count):
    base = ctypes.c_uint64()
    return code("cuMemAlloc_v2", ctypes.byref(base), ctypes.c_size_t(count)), base.value


def alloc(count):
    answer, base = try_alloc(count)
    if answer != 0:
        raise RuntimeError(f"cuMemAlloc of {count}: CUresult {answer}")
    return base


def free(base):
    return code("cuMemFree_v2", address(base))


def share(at):
    handle = Handle()
    return code("cuIpcGetMemHandle", ctypes.byref(handle), address(at)), handle


def opened(handle, flags=LAZY):
    base = ctypes.c_uint64()
    return code("cuIpcOpenMemHandle_v2", ctypes.byref(base), handle, ctypes.c_uint(flags)), base.value


def put(base, byte, count):
    call("cuMemsetD8_v2", address(base), ctypes.c_ubyte(byte), ctypes.c_size_t(count))
    call("cuCtxSynchronize")


def byte_at(at):
    value = ctypes.c_ubyte()
    call("cuMemcpyDtoH_v2", ctypes.byref(value), address(at), ctypes.c_size_t(1))
    return value.value


def free_bytes():
    now, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(now), ctypes.byref(total))
    return now.value, total.value


def timed(run):
    begin = time.perf_counter()
    answer = run()
    return (time.perf_counter() - begin) * 1e6, answer


class Peer:
    """A second process, which opens handles."""

    def __init__(self, device=0):
        command = [sys.executable, __file__, "--inner", "opener", "--device", str(device)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the second process is gone")
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)


def opener(device):
    load()
    enter(device)
    for line in sys.stdin:
        what, *words = json.loads(line)
        if what == "open":
            microseconds, answer = timed(lambda: opened(Handle.from_buffer_copy(bytes.fromhex(words[0]))))
            reply = [*answer, microseconds]
        elif what == "close":
            microseconds, answer = timed(lambda: code("cuIpcCloseMemHandle", address(words[0])))
            reply = [answer, microseconds]
        elif what == "bytes":
            reply = [byte_at(words[0]), byte_at(words[0] + words[1] - 1)]
        elif what == "put":
            reply = put(*words)
        elif what == "looks":
            reply = looks(*words)
        elif what == "misuse":
            reply = [share(words[0])[0], free(words[0])]
        print(json.dumps(reply), flush=True)


# --- facts: the same in both runs ---


def looks(base, count):
    """Each attribute of a pointer into it: the answer, and the word as far as it does not depend on where the memory lies."""
    at, found = base + 12345, {}
    for attribute in range(1, 22):
        if attribute == 5:  # tokens: they are of this memory alone
            continue
        words = (ctypes.c_uint64 * 4)()
        answer = code("cuPointerGetAttribute", ctypes.byref(words), ctypes.c_int(attribute), address(at))
        several, place = (ctypes.c_int * 1)(attribute), (ctypes.c_uint64 * 4)()
        places = (ctypes.c_void_p * 1)(ctypes.addressof(place))
        many = code("cuPointerGetAttributes", ctypes.c_uint(1), several, places, address(at))
        word = words[0]
        named = {at: "pointer", base: "base", count: "size"}.get(word)
        # A context, an id, and the size of the driver's own mapping are any number.
        if attribute in (1, 7, 18, 20):
            named = "some" if word else 0
        if attribute == 19:
            named = "begin" if answer == 0 else 0
        found[attribute] = [answer, word if named is None else named, many, place[0] == word or answer != 0]
    begin, size = ctypes.c_uint64(), ctypes.c_size_t()
    found["range"] = [code("cuMemGetAddressRange_v2", ctypes.byref(begin), ctypes.byref(size), address(at)), begin.value == base,
                      size.value == count]
    handle = ctypes.c_uint64()
    found["retain"] = code("cuMemRetainAllocationHandle", ctypes.byref(handle), ctypes.c_void_p(at))
    return found


def captured(stream, mode):
    """What allocation and free answer while a stream is captured."""
    before, graph, thread = alloc(BIG), ctypes.c_void_p(), ctypes.c_int(mode)
    call("cuThreadExchangeStreamCaptureMode", ctypes.byref(thread))
    call("cuStreamBeginCapture_v2", stream, ctypes.c_int(GLOBAL))
    made, base = try_alloc(BIG)
    freed = free(base) if made == 0 else None
    answer = [made, freed, free(before)]
    answer.append(code("cuStreamEndCapture", stream, ctypes.byref(graph)))
    call("cuThreadExchangeStreamCaptureMode", ctypes.byref(thread))
    if answer[2] != 0:
        call("cuMemFree_v2", address(before))
    return answer


def work(stream, base, count):
    """Some 100 ms for the GPU; how long it took the program to send it off."""
    begin = time.perf_counter()
    for _ in range(400):
        call("cuMemsetD8Async", address(base), ctypes.c_ubyte(7), ctypes.c_size_t(count), stream)
    return time.perf_counter() - begin


def waits(end):
    """Whether an end of memory waits for the work that uses it: the work lasts as long with it as with a wait for all."""
    stream, count = ctypes.c_void_p(), 1 << 30
    call("cuStreamCreate", ctypes.byref(stream), 1)
    base = alloc(count)
    work(stream, base, count)
    call("cuCtxSynchronize")
    sent = work(stream, base, count)
    whole, _ = timed(lambda: call("cuCtxSynchronize"))
    work(stream, base, count)
    took, answer = timed(lambda: end(base))
    after = code("cuCtxSynchronize")
    return {"waits": bool(took > whole / 2), "answers": [answer, after], "sent_ms": round(sent * 1e3), "work_ms": round(whole / 1e3),
            "end_ms": round(took / 1e3)}


def contexts():
    """Memory of a context that is destroyed is back."""
    context = ctypes.c_void_p()
    before, _ = free_bytes()
    if code("cuCtxCreate_v2", ctypes.byref(context), 0, 0) != 0:
        return None
    base = alloc(256 * MIB)
    with_it, _ = free_bytes()
    _, handle = share(base)
    ended = code("cuCtxDestroy_v2", context)
    time.sleep(0.2)
    after, _ = free_bytes()
    peer = Peer()
    void = peer.ask("open", bytes(handle.bytes).hex())[0] != 0
    peer.end()
    # The driver may keep some of what a context needs.
    return {"codes": [ended, free(base)], "took": before - with_it >= 256 * MIB, "back": before - after < 128 * MIB, "void": void}


def full():
    """90% of the device in pieces, half of them freed: how many larger ones find room."""
    now, _ = free_bytes()
    pieces = [alloc(64 * MIB) for _ in range(int(now * 0.9) // (64 * MIB))]
    answer, _ = try_alloc(now)
    for base in pieces[::2]:
        call("cuMemFree_v2", address(base))
    larger = []
    while True:
        made, base = try_alloc(256 * MIB)
        if made != 0:
            break
        larger.append(base)
    ends = [free(base) for base in pieces[1::2] + larger]
    after, _ = free_bytes()
    return {"refused": answer, "last": made, "ends": sum(ends), "back": after >= now - (64 << 20)}, len(larger)


def sharing():
    """The calls in their order, and in wrong ones."""
    base, peer = alloc(BIG), Peer()
    put(base, 11, BIG)
    first, handle = share(base)
    again, other = share(base + BIG - 1)
    text = bytes(handle.bytes).hex()
    rows = {"share": [first, again, bytes(handle.bytes) == bytes(other.bytes)], "own": opened(handle)[0], "flags": opened(handle, 0)[0],
            "nothing": opened(Handle.from_buffer_copy(b"\x5a" * 64))[0], "close own": code("cuIpcCloseMemHandle", address(base)),
            "share nothing": share(4096)[0]}
    answer, there, _ = peer.ask("open", text)
    second, same, _ = peer.ask("open", text)
    rows["open"] = [answer, second, there == same, peer.ask("bytes", there, BIG)]
    rows["looks of opened"] = peer.ask("looks", there, BIG)
    rows["misuse of opened"] = peer.ask("misuse", there)
    peer.ask("put", there, 12, BIG)
    rows["seen"] = [byte_at(base), byte_at(base + BIG - 1)]
    rows["close"] = peer.ask("close", there)[0]
    put(base, 13, BIG)
    rows["seen there"] = peer.ask("bytes", there, BIG)
    rows["free"] = free(base)
    rows["bytes stay"] = peer.ask("bytes", there, BIG)
    third = Peer()
    rows["void"] = third.ask("open", text)[0] != 0
    rows["closes"] = [peer.ask("close", there)[0] for _ in range(2)]
    rows["exits"] = [peer.end(), third.end()]
    return rows


def wrong_ends():
    base = alloc(BIG)
    return [free(base + 4096), free(base), free(base), free(0), try_alloc(0)[0], try_alloc(1 << 50)[0]]


def sync_memops():
    base, value, seen = alloc(BIG), ctypes.c_uint(1), ctypes.c_uint(5)
    answer = code("cuPointerSetAttribute", ctypes.byref(value), ctypes.c_int(SYNC_MEMOPS), address(base))
    code("cuPointerGetAttribute", ctypes.byref(seen), ctypes.c_int(SYNC_MEMOPS), address(base))
    return [answer, seen.value, free(base)]


def facts():
    load()
    enter()
    base, small = alloc(BIG), alloc(SMALL)
    rows, figures = {"looks": looks(base, BIG), "looks of small": looks(small, SMALL)}, {}
    stream = ctypes.c_void_p(1)
    if hasattr(cuda, "cuStreamCreate"):
        call("cuStreamCreate", ctypes.byref(stream), 1)
    rows["capture"], rows["capture, relaxed"] = captured(stream, GLOBAL), captured(stream, RELAXED)
    rows["wrong ends"], rows["sharing"], rows["sync_memops"] = wrong_ends(), sharing(), sync_memops()
    rows["context destroyed"] = contexts()
    if hasattr(cuda, "cuMemsetD8Async"):
        found = waits(free)
        figures["free during work"] = {key: found[key] for key in ("work_ms", "end_ms")}
        rows["free during work"] = [found["waits"], found["answers"]]
    rows["device full"], figures["larger pieces at 90%"] = full()
    print(json.dumps({"rows": rows, "figures": figures}), flush=True)


# --- times ---


def costs():
    load()
    enter()
    found, peer = {}, Peer()
    for mib in TIMED_MIB:
        made = [timed(lambda: alloc(mib * MIB)) for _ in range(ROUNDS if mib < 512 else 8)]
        freed = [timed(lambda: free(base))[0] for _, base in made]
        found[f"alloc {mib} MiB"], found[f"free {mib} MiB"] = statistics.median(t for t, _ in made), statistics.median(freed)
    bases = [alloc(64 * MIB) for _ in range(ROUNDS)]
    shares = [timed(lambda: share(base)) for base in bases]
    texts = [bytes(handle.bytes).hex() for _, (_, handle) in shares]
    opens = [peer.ask("open", text) for text in texts]
    assert not any(answer for answer, _, _ in opens), opens
    found["first share"] = statistics.median(t for t, _ in shares)
    found["share again"] = statistics.median(timed(lambda: share(base))[0] for base in bases)
    found["open"] = statistics.median(microseconds for _, _, microseconds in opens)
    found["open again"] = statistics.median(peer.ask("open", text)[2] for text in texts)
    for _, there, _ in opens:
        peer.ask("close", there)
    found["close"] = statistics.median(peer.ask("close", there)[1] for _, there, _ in opens)
    found["free of shared"] = statistics.median(timed(lambda: free(base))[0] for base in bases)
    microseconds, small = timed(lambda: [alloc(1024) for _ in range(100_000)])
    found["100,000 of 1 KiB"] = microseconds
    [free(base) for base in small]
    print(json.dumps({"rows": {"exit": peer.end()}, "figures": found}), flush=True)


# --- several devices ---


def peers(count, with_times):
    """From each device to the next: copies without peer access, and what access costs an allocation of 1 GiB before and after."""
    load()
    contexts_of = [enter(device) for device in range(count)]
    rows, found = {}, {}

    def on(device, run):
        call("cuCtxPushCurrent_v2", contexts_of[device])
        answer = run()
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        return answer

    def gib():
        # The driver clears what was freed before it gives it out again: that is nobody's cost here.
        time.sleep(SETTLED_S)
        made = [timed(lambda: alloc(1 << 30)) for _ in range(8)]
        [free(base) for _, base in made]
        return statistics.median(t for t, _ in made)

    bases = [on(device, lambda: alloc(BIG)) for device in range(count)]
    for device, base in enumerate(bases):
        on(device, lambda: put(base, device + 1, BIG))

    def copied(how):
        seen = []
        for device in range(count):
            source = (device + 1) % count
            if how == "cuMemcpyPeer":
                answer = code(how, address(bases[device]), contexts_of[device], address(bases[source]), contexts_of[source],
                              ctypes.c_size_t(4096))
            else:
                answer = on(device, lambda: code(how, address(bases[device]), address(bases[source]), ctypes.c_size_t(4096)))
            call("cuCtxSynchronize")
            seen.append([answer, byte_at(bases[device]), byte_at(bases[device] + 4096)])
            on(device, lambda: put(bases[device], device + 1, BIG))
        return seen

    rows["copies before"] = [copied("cuMemcpyPeer"), copied("cuMemcpyDtoD_v2"), copied("cuMemcpy")]
    if with_times:
        found["alloc 1 GiB, before"] = on(0, gib)
    rows["enable"] = [on(device, lambda: code("cuCtxEnablePeerAccess", contexts_of[of], 0))
                      for device in range(count) for of in range(count) if of != device]
    rows["enable again"] = on(1, lambda: code("cuCtxEnablePeerAccess", contexts_of[0], 0))
    if with_times:
        found["alloc 1 GiB, after"] = on(0, gib)
    rows["copies after"] = [copied("cuMemcpyPeer"), copied("cuMemcpyDtoD_v2")]
    # A handle opened on its own device, and on another one.
    _, handle = on(0, lambda: share(bases[0]))
    for device in range(2):
        peer = Peer(device)
        answer, there, _ = peer.ask("open", bytes(handle.bytes).hex())
        rows[f"open on {device}"] = [answer, peer.ask("bytes", there, BIG) if answer == 0 else None, peer.end()]
    rows["disable"] = [on(device, lambda: code("cuCtxDisablePeerAccess", contexts_of[of]))
                       for device in range(count) for of in range(count) if of != device]
    rows["disable again"] = on(1, lambda: code("cuCtxDisablePeerAccess", contexts_of[0]))
    rows["ends"] = [free(base) for base in bases]
    print(json.dumps({"rows": rows, "figures": found}), flush=True)


# --- the outer part ---


class Book:
    def __init__(self, folder):
        self.fdbroker, self.passed, self.failed, self.table = str(folder / "fdbroker"), 0, 0, []

    def check(self, what, holds, seen=None):
        self.passed += bool(holds)
        self.failed += not holds
        print(f"{'ok    ' if holds else 'FAILED'}  {what}" + ("" if holds else f": {seen}"), flush=True)

    def run(self, inner, layer, more):
        launcher = [self.fdbroker, "run", "--cuda=malloc", "--max-fds", "4096", "--quiet", "--"] if layer else []
        command = [*launcher, sys.executable, __file__, "--inner", inner, *more]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S)
        if done.returncode:
            raise RuntimeError(f"{inner}, {'layer' if layer else 'direct'}: exit status {done.returncode}")
        return json.loads(done.stdout.splitlines()[-1])

    def compare(self, inner, more=(), turns=(False, True)):
        found = {False: [], True: []}
        try:
            for layer in turns:
                found[layer].append(self.run(inner, layer, more))
        except Exception as cause:
            traceback.print_exc()
            return self.check(f"{inner} ran", False, cause)
        direct, layer = found[False][0]["rows"], found[True][0]["rows"]
        for what, expected in direct.items():
            self.differ(f"{inner}: {what}", expected, layer.get(what))
        for what, figure in found[False][0]["figures"].items():
            self.figure(inner, what, *([it["figures"][what] for it in found[side]] for side in (False, True)))

    def differ(self, what, expected, seen):
        """Each attribute is a row of its own."""
        if isinstance(expected, dict) and isinstance(seen, dict):
            for key in expected:
                self.differ(f"{what}: {key}", expected[key], seen.get(key))
        elif what in REFUSED:
            self.check(f"{what} is refused, directly {expected}", seen in (REFUSED[what], expected), seen)
        else:
            self.check(f"{what} is as directly", expected == seen, f"directly {expected}, under the layer {seen}")

    def figure(self, inner, what, direct, layer):
        if not isinstance(direct[0], (int, float)):
            return self.table.append(f"{what:<28} direct {direct[0]}, layer {layer[0]}")
        direct, layer = statistics.mean(direct), statistics.mean(layer)
        target = next((TARGETS[key] for key in sorted(TARGETS, key=len, reverse=True) if what.startswith(key)), "")
        self.table.append(f"{what:<28}{direct:>12.1f}{layer:>12.1f}{layer / max(direct, 1e-9):>8.2f}{target:>8}")
        if target and inner != "facts":
            slow = f"{direct:.1f} and {layer:.1f} us"
            self.check(f"{what}: no hang", layer <= HANGS * direct + SLACK_US, slow)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="of the programs")
    parser.add_argument("--gpus", type=int, default=1, help="from 2 on: what needs several, alone [1]")
    parser.add_argument("--facts", action="store_true", help="no times")
    inner = parser.add_argument_group("the inner part, which the program starts by itself")
    inner.add_argument("--inner", choices=["facts", "costs", "peers", "opener"])
    inner.add_argument("--device", type=int, default=0)
    options = parser.parse_args()
    if options.inner:
        play = {"facts": facts, "costs": costs, "peers": lambda: peers(options.gpus, not options.facts), "opener": lambda: opener(options.device)}
        return play[options.inner]()
    if not options.folder:
        parser.error("the folder of fdbroker is missing")
    book = Book(options.folder.resolve())
    if options.gpus > 1:
        more = ["--facts"] if options.facts else []
        book.compare("peers", ["--gpus", str(options.gpus), *more], (False, True) if options.facts else (False, True, True, False))
    else:
        book.compare("facts")
        if not options.facts:
            book.compare("costs", (), (False, True, True, False))
    print(f"\n{'':<28}{'direct us':>12}{'layer us':>12}{'ratio':>8}{'target':>8}", *book.table, sep="\n")
    print(f"{book.passed} passed, {book.failed} failed")
    return 1 if book.failed else 0


if __name__ == "__main__":
    sys.exit(main())
