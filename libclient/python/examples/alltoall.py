"""All ranks of a node open a buffer of every other rank, by handles that MPI carries by value.

    fdbroker run -- mpirun -n 4 python alltoall.py

Needs mpi4py and numpy. Each number is checked. Must never end in one rank while another still opens its buffer.
"""

import numpy
from mpi4py import MPI

import fdbroker


def main() -> None:
    world = MPI.COMM_WORLD
    # Handles are good on one node.
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    with fdbroker.connect() as broker:
        mine = broker.empty((node.size, 1024), "int32")
        mine.numpy()[:] = node.rank
        handles = node.allgather(mine.handle)
        # It returned: every rank has filled its buffer.
        if node.rank == 0:
            print(f"{node.size} handles were gathered", flush=True)
        for peer, handle in enumerate(handles):
            with broker.open(handle, mine.shape, mine.dtype, writable=True) as theirs:
                assert (theirs.numpy()[node.rank] == peer).all()
                theirs.numpy()[node.rank] = 1000 + node.rank
        node.Barrier()
        expected = numpy.repeat(1000 + numpy.arange(node.size, dtype="int32"), 1024).reshape(node.size, 1024)
        assert (mine.numpy() == expected).all()
        # Nobody ends while others still open.
        node.Barrier()
    if node.rank == 0:
        print(f"{node.size} ranks opened {node.size * node.size} buffers: every number is right")


if __name__ == "__main__":
    main()
