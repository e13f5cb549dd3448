"""The C ABI from Python: every rank shares a buffer, handles travel by mpi4py, every rank reads all the others'.

Must never pass when a rank is missing or a byte is wrong. Needs nothing but ctypes and mpi4py:

    mpirun -n 4 fdbroker run --join -- python3 rank.py 4
"""

import ctypes as c
import sys

from mpi4py import MPI

SIZE_BYTES = 300_000
DEADLINE_MS = 10_000
HOST_ARENA = 0
IMPORT_READ = 0
STALE = 4


class Handle(c.Structure):
    _fields_ = [("bytes", c.c_uint8 * 64)]


class Import(c.Structure):
    _fields_ = [
        ("ptr", c.c_void_p),
        ("size_bytes", c.c_uint64),
        ("pin", c.c_uint64),
        ("slot", c.c_uint32),
        ("generation", c.c_uint32),
    ]


class Broker:
    """One connection of this process; errors of the library become exceptions with its message."""

    def __init__(self):
        self.library = c.CDLL("libfdbroker.so.0")
        for name in ("fdbroker_error_name", "fdbroker_last_error"):
            getattr(self.library, name).restype = c.c_char_p
        self.context = c.c_void_p()
        self.call("open", None, c.byref(self.context))

    def call(self, name, *arguments):
        code = getattr(self.library, f"fdbroker_{name}")(*arguments)
        if code != 0:
            error = RuntimeError(f"{name}: {self.library.fdbroker_error_name(code).decode()}: "
                                 f"{self.library.fdbroker_last_error().decode()}")
            error.code = code
            raise error

    def allocate(self, size):
        """Memory to share, as a writable view, and its handle as 64 bytes."""
        pointer, handle = c.c_void_p(), Handle()
        self.call("host_alloc", self.context, c.c_uint32(HOST_ARENA), c.c_uint64(size), c.c_uint32(DEADLINE_MS),
                  c.byref(pointer), c.byref(handle))
        return pointer, (c.c_uint8 * size).from_address(pointer.value), bytes(handle)

    def free(self, pointer):
        self.call("host_free", self.context, pointer)

    def open_import(self, handle):
        opened = Import()
        self.call("import", self.context, c.byref(Handle.from_buffer_copy(handle)), c.c_uint32(IMPORT_READ),
                  c.c_uint32(DEADLINE_MS), c.byref(opened))
        return opened

    def open_import_or_none(self, handle):
        """None: its owner has freed it."""
        try:
            return self.open_import(handle)
        except RuntimeError as error:
            if error.code != STALE:
                raise
            return None

    def release(self, opened):
        self.call("import_release", self.context, c.byref(opened))

    def close(self):
        self.call("close", self.context)


def pattern(rank):
    return bytes((position * 7 + rank * 31) % 251 for position in range(SIZE_BYTES))


def main():
    comm = MPI.COMM_WORLD
    rank, size, asked = comm.Get_rank(), comm.Get_size(), int(sys.argv[1])
    if size != asked:
        raise SystemExit(f"{asked} ranks were asked for, the world has {size}: mpi4py of another MPI?")

    broker = Broker()
    pointer, memory, handle = broker.allocate(SIZE_BYTES)
    memory[:] = pattern(rank)
    handles = comm.allgather(handle)

    wrong = 0
    for peer, theirs in enumerate(handles):
        opened = broker.open_import(theirs)
        seen, expected = c.string_at(opened.ptr, SIZE_BYTES), pattern(peer)
        wrong += sum(a != b for a, b in zip(seen, expected))
        broker.release(opened)
    wrong = comm.allreduce(wrong)

    # After the reduction nobody reads any more. Freeing does not wait for the broker: until it has heard, a
    # handle still gives the old memory, and never anything else.
    broker.free(pointer)
    peer = (rank + 1) % size
    while (opened := broker.open_import_or_none(handles[peer])) is not None:
        wrong += c.string_at(opened.ptr, SIZE_BYTES) != pattern(peer)
        broker.release(opened)
    comm.barrier()
    broker.close()
    if rank == 0:
        print(f"rank.py: {size} ranks, {size * size * SIZE_BYTES} bytes read, {wrong} bytes wrong", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        status = main()
    except BaseException as error:  # one rank that ends alone would leave the others waiting
        print(f"rank.py: rank {MPI.COMM_WORLD.Get_rank()}: {error}", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(1)
    sys.exit(status)
