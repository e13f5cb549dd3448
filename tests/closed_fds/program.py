"""A Python program that closes all fds above 2, or all, and opens files: none of these is written, read or closed, and the package
works again. Prints `ok NAME` or `FAIL NAME` for each case."""

import contextlib
import fcntl
import os
import resource
import sys
import tempfile
import threading
import time
import traceback

import fdbroker

SOON_S = 60.0
WORDS = b"of the program's"


class Taken:
    """Everything from this fd on is closed, and there are files at the lowest numbers and at those where the library's lay."""

    def __init__(self, first):
        high = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 900)
        os.closerange(first, high)
        os.closerange(high + 1, 65536)
        self.out, self.folder, self.files = high, tempfile.TemporaryDirectory(), {}
        for number in range(60):
            fd = os.open(f"{self.folder.name}/{number}", os.O_RDWR | os.O_CREAT)
            if number % 2:
                fd, low = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 512), fd
                os.close(low)
            os.write(fd, WORDS)
            os.lseek(fd, 3, 0)
            self.files[fd] = os.fstat(fd).st_ino

    def harmed(self):
        found = []
        for number, inode in self.files.items():
            try:
                stat = os.fstat(number)
                is_good = (stat.st_ino, stat.st_size, os.lseek(number, 0, 1)) == (inode, len(WORDS), 3)
            except OSError:
                is_good = False
            if not is_good:
                found.append(number)
        return found

    def end(self, standard):
        for fd in range(standard):
            os.dup2(self.out, fd)
        for number in self.files:
            if number >= 3:
                os.close(number)
        os.close(self.out)
        self.folder.cleanup()


def owner(socket):
    """Another process with memory to open: its handle."""
    read, write = os.pipe()
    end_read, end_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end_write)
        broker = fdbroker.connect(socket)
        memory = broker.array(b"o" * 4096)
        os.write(write, bytes(memory.handle))
        os.read(end_read, 1)
        os._exit(0)
    os.close(end_read)
    handle = fdbroker.Handle(os.read(read, 64))
    os.close(read), os.close(write)
    return handle, end_write, child


def opens(broker, handle):
    with broker.open(handle, (4096,), "uint8", timeout=SOON_S) as view:
        return bytes(view.memoryview()) == b"o" * 4096


def all_closed_then_the_next_call_works(socket, first=3):
    handle, life, child = owner(socket)
    broker, other = fdbroker.connect(socket), fdbroker.connect(socket)
    memory = broker.empty((4096,), "uint8")
    memory.handle
    view = broker.open(handle, (4096,), "uint8", timeout=SOON_S)
    os.set_inheritable(life, False)
    taken = Taken(first)
    # The owner has heard the end of its pipe: another one.
    handle, life, child = owner(socket)
    try:
        opens(broker, handle)
    except fdbroker.NotConnected:
        # One call that needs the broker hears of it, unless the library's thread was there first.
        pass
    is_right = opens(broker, handle) and broker.connected
    for act in (view.close, memory.close, broker.stats, other.empty_cache, other.close, broker.close):
        try:
            act()
        except fdbroker.Error:
            pass
    harmed = taken.harmed()
    taken.end(3 if first == 0 else 0)
    os.waitpid(child, os.WNOHANG)
    assert is_right, "the next open does not work"
    assert not harmed, f"files at {harmed} were written, read or closed"


def all_closed_with_stdio_then_the_next_call_works(socket):
    all_closed_then_the_next_call_works(socket, 0)


def all_closed_while_threads_call_then_each_is_answered(socket):
    handle, life, child = owner(socket)
    broker = fdbroker.connect(socket)
    stop, counts = threading.Event(), [0, 0, 0]

    def call(which):
        while not stop.is_set():
            try:
                opens(broker, handle)
                broker.empty_cache()
                counts[which] += 1
            except fdbroker.Error:
                pass

    threads = [threading.Thread(target=call, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        # Those that the library keeps, and nothing that threads have for a moment.
        for fd in (int(fd) for fd in os.listdir("/proc/self/fd")):
            if fd >= 500:
                with contextlib.suppress(OSError):
                    # The library may have closed it itself since it was listed.
                    os.close(fd)
        had, until = sum(counts), time.monotonic() + SOON_S
        while sum(counts) < had + 5 and time.monotonic() < until:
            time.sleep(0.01)
        assert sum(counts) >= had + 5, "calls hang or fail"
    stop.set()
    for thread in threads:
        thread.join(SOON_S)
    assert not any(thread.is_alive() for thread in threads)
    broker.close()
    os.close(life)
    os.waitpid(child, 0)


def main():
    passed = True
    # The library's fds then lie from 512 on.
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with fdbroker.private_broker(settings={"limits.recall_timeout_ms": 600000}) as broker:
        socket = broker.socket
        for case in (all_closed_then_the_next_call_works, all_closed_with_stdio_then_the_next_call_works,
                     all_closed_while_threads_call_then_each_is_answered):
            # In a process of its own, which may lose all its fds; the broker's are its parent's.
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    case(socket)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                os._exit(status)
            is_good = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            passed &= is_good
            print("ok   " if is_good else "FAIL ", case.__name__, flush=True)
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
