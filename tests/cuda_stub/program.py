#!/usr/bin/env python3
"""Shares device memory as Python programs do: ctypes, subprocess, multiprocessing, sockets. It knows nothing of fdbroker. Ends with
status 0 when nothing failed; must never need more than the standard library. usage: program.py, or program.py ROLE as a second process"""

import array
import ctypes
import errno
import json
import multiprocessing
import os
import socket
import subprocess
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_ulonglong, c_void_p
from multiprocessing import reduction

SEGMENT = 65536
FIRST_VIRTUAL = 1 << 30
SYS_PIDFD_OPEN, SYS_PIDFD_GETFD = 434, 438
POSIX_FD = 1
LAYERED = "EXPECT_LAYER" in os.environ
failed = 0


class Prop(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", c_int * 2), ("win32", c_void_p), ("flags", ctypes.c_ubyte * 8)]


class Driver:
    """libcuda by ctypes, whose calls are found by dlsym."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        context = c_void_p()
        self("cuDevicePrimaryCtxRetain", byref(context), 0)
        self("cuCtxPushCurrent_v2", context)

    def __call__(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result:
            raise RuntimeError("%s answers %d" % (name, result))

    def create(self, byte):
        handle = c_ulonglong()
        self("cuMemCreate", byref(handle), c_size_t(SEGMENT), byref(Prop(1, POSIX_FD, (1, 0))), c_ulonglong(0))
        base = self.map(handle)
        self("cuMemcpyHtoD_v2", base, bytes([byte]) * SEGMENT, c_size_t(SEGMENT))
        self("cuStreamSynchronize", None)
        return handle, base

    def map(self, handle):
        base, access = c_uint64(), (c_int * 3)(1, 0, 3)
        self("cuMemAddressReserve", byref(base), c_size_t(SEGMENT), c_size_t(0), c_uint64(0), c_ulonglong(0))
        self("cuMemMap", base, c_size_t(SEGMENT), c_size_t(0), handle, c_ulonglong(0))
        self("cuMemSetAccess", base, c_size_t(SEGMENT), access, c_size_t(1))
        return base

    def export(self, handle):
        number = c_int(-1)
        self("cuMemExportToShareableHandle", byref(number), handle, POSIX_FD, c_ulonglong(0))
        return number.value

    def free(self, handle, base):
        self("cuMemUnmap", base, c_size_t(SEGMENT))
        self("cuMemAddressFree", base, c_size_t(SEGMENT))
        self("cuMemRelease", handle)

    def shows(self, fd, byte):
        handle, seen = c_ulonglong(), ctypes.create_string_buffer(SEGMENT)
        self("cuMemImportFromShareableHandle", byref(handle), c_void_p(fd), POSIX_FD)
        base = self.map(handle)
        self("cuMemcpyDtoH_v2", seen, base, c_size_t(SEGMENT))
        self.free(handle, base)
        return seen.raw == bytes([byte]) * SEGMENT


def shows_and_closes(driver, fd, byte):
    is_shown = fd >= 0 and fd < FIRST_VIRTUAL and driver.shows(fd, byte)
    os.close(fd)
    return is_shown


def getfd(libc, pid, number):
    pidfd = libc.syscall(SYS_PIDFD_OPEN, pid, 0)
    fd = libc.syscall(SYS_PIDFD_GETFD, pidfd, number, 0)
    os.close(pidfd)
    return fd


# --- second processes ---

def by_pid(driver, pid, number, byte):
    libc = ctypes.CDLL(None, use_errno=True)
    return shows_and_closes(driver, getfd(libc, pid, number), byte)


def by_pid_of_named_libc(driver, pid, number, byte):
    libc = ctypes.CDLL("libc.so.6", use_errno=True)
    return shows_and_closes(driver, getfd(libc, pid, number), byte)


def inherited(driver, _pid, number, byte):
    return driver.shows(number, byte)


def on_stdin(driver, _pid, _number, byte):
    sock = socket.socket(fileno=0)
    _, fds, _, _ = socket.recv_fds(sock, 1, 1)
    return shows_and_closes(driver, fds[0], byte)


ROLES = {role.__name__: role for role in (by_pid, by_pid_of_named_libc, inherited, on_stdin)}


def spawned(connection, pid, byte):
    """A process of multiprocessing."""
    driver = Driver()
    fd = reduction.recv_handle(connection)
    connection.send(shows_and_closes(driver, fd, byte) and by_pid(driver, pid, connection.recv(), byte))


def second(role, number, byte, **how):
    command = [sys.executable, __file__, role, str(os.getpid()), str(number), str(byte)]
    return subprocess.run(command, **how).returncode == 0


# --- cases ---

def check(name, is_so):
    global failed
    print("%s  %s" % ("ok  " if is_so else "FAIL", name), flush=True)
    failed += not is_so


def is_ebadf(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return error.errno == errno.EBADF
    return False


def main():
    driver = Driver()
    handle, base = driver.create(7)
    number = driver.export(handle)
    check("export_when_by_ctypes_is_a_number", (number >= FIRST_VIRTUAL) == LAYERED)
    check("number_when_taken_by_ctypes_is_the_memory", second("by_pid", number, 7))
    check("number_when_taken_by_ctypes_of_libc_so_6_is_the_memory", second("by_pid_of_named_libc", number, 7))
    check("number_when_passed_on_by_subprocess_is_the_memory", second("inherited", number, 7, pass_fds=[number]))

    ours, theirs = socket.socketpair()
    socket.send_fds(ours, [b"x"], [number])
    check("number_when_sent_by_send_fds_is_the_memory", second("on_stdin", number, 7, stdin=theirs))
    with open(os.devnull) as plain:
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [number, plain.fileno()]))])
    _, fds, _, _ = socket.recv_fds(theirs, 1, 2)
    os.close(fds[1])
    check("number_when_sent_beside_a_file_is_the_memory", shows_and_closes(driver, fds[0], 7))

    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=spawned, args=(there, os.getpid(), 7))
    process.start()
    reduction.send_handle(here, number, process.pid)
    here.send(number)
    check("number_when_sent_by_multiprocessing_is_the_memory", here.recv())
    process.join()

    copy = os.dup(number)
    check("number_when_duplicated_is_the_memory", shows_and_closes(driver, copy, 7))
    os.set_inheritable(number, True)
    os.fstat(number)
    check("number_when_its_owner_asks_is_inheritable_or_closed_by_exec", os.get_inheritable(number) in (True, not LAYERED))
    check("read_when_of_the_number_fails", LAYERED is False or is_ebadf(os.read, number, 1))
    if "GPUS" in os.environ:
        listed = subprocess.run(os.environ["GPUS"], shell=True, stdout=subprocess.PIPE).stdout
        seen = [(gpu["gpu"], gpu["size_bytes"]) for gpu in json.loads(listed)["gpus"]]
        check("gpu_when_its_memory_is_exported_is_listed_by_its_uuid", seen == [("GPU-fdb0005a-5a5a-5a5a-5a5a-5a5a5a5a5a5a", SEGMENT)])
    os.close(number)
    check("number_when_closed_is_ebadf", is_ebadf(os.close, number) and is_ebadf(os.fstat, number))
    driver.free(handle, base)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(not ROLES[sys.argv[1]](Driver(), *map(int, sys.argv[2:])))
    main()
    sys.exit(failed > 0)
