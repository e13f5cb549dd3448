#!/usr/bin/env python3
"""The first full read of an object in host memory beside that of the same bytes in a file that is mapped from the page cache, each in a
process of its own, in turns. Times go from the get, or from the open of the file, to the end of the read: all faults are in them.

    FDBROKER_LIBRARY=... FDBROKER_BIN_DIR=... PYTHONPATH=libclient/python python3 tests/objects/first_read.py [--mib 1024] [--rounds 7]

Needs numpy and two processors. Where the file lies counts: /tmp must not be a tmpfs. Must never call a read right whose sum is wrong, nor compare ways that ran on different processors.
"""

import argparse
import mmap
import multiprocessing
import os
import statistics
import tempfile
import time

import numpy

import fdbroker

NAME = "first-read"
HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
WAYS = ("mmap", "populated", "plain")


def read(way, socket, path, cpu, answers):
    os.sched_setaffinity(0, {cpu})
    broker = fdbroker.connect(socket)
    began = time.perf_counter()
    if way == "mmap":
        with open(path, "rb") as source:
            memory = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
        values = numpy.frombuffer(memory, numpy.uint64)
    else:
        memory = broker.get(NAME)
        if way == "populated":
            memory.populate()
        values = memory.numpy(dtype="u8")
    answers.send((int(values.sum(dtype=numpy.uint64)), time.perf_counter() - began))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="bytes that are read [1024]")
    parser.add_argument("--rounds", type=int, default=7, help="reads of each way [7]")
    options = parser.parse_args()
    context, cpu = multiprocessing.get_context("spawn"), max(os.sched_getaffinity(0))
    values = numpy.arange(options.mib << 17, dtype=numpy.uint64)
    expected, found = int(values.sum(dtype=numpy.uint64)), {way: [] for way in WAYS}
    with tempfile.NamedTemporaryFile() as file, fdbroker.private_broker() as broker:
        values.tofile(file.name)
        broker.put(NAME, values)
        for _ in range(options.rounds):
            for way in WAYS:
                answers, theirs = context.Pipe()
                child = context.Process(target=read, args=(way, broker.socket, file.name, cpu, theirs))
                child.start()
                total, took = answers.recv()
                child.join()
                assert total == expected, (way, total, expected)
                found[way].append(took)
    base = statistics.median(found["mmap"])
    with open(HUGE_PAGES) as setting:
        print("huge pages of shared memory: " + setting.read().strip())
    for way in WAYS:
        median = statistics.median(found[way])
        print(f"{way:<12}{median * 1e3:8.1f} ms  {median / base:5.2f} x mmap  ({min(found[way]) * 1e3:.1f} to {max(found[way]) * 1e3:.1f})")


if __name__ == "__main__":
    main()
