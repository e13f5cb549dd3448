"""Buffers that all GPUs of a job reach, as their libraries make them: NCCL's registered buffers and windows, and NVSHMEM's heap. A rank of
devices.py. Must never make a multicast object.
"""

import warnings

from devices import ELEMENTS, STRIDE, median_us


def pooled(torch, backend, size):
    """Memory of ncclMemAlloc."""
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        return pool, [torch.empty(count, device="cuda") for count in (ELEMENTS, ELEMENTS // size, ELEMENTS)]


def windows(torch, dist, rank, size):
    """Collectives between registered buffers (ncclCommRegister), then between symmetric windows (ncclCommWindowRegister)."""
    backend = dist.group.WORLD._get_backend(torch.device("cuda", rank))
    wrong, figures = 0, {}
    for name, symmetric in (("buffers", False), ("windows", True)):
        pool, (values, part, gathered) = pooled(torch, backend, size)
        try:
            backend.register_mem_pool(pool, symm=symmetric)
        except TypeError:
            return None, f"PyTorch {torch.__version__} registers no windows"
        values.fill_(float(rank + 1))
        dist.all_reduce(values)
        wrong += not bool((values == sum(range(1, size + 1))).all())
        part.fill_(float(rank - 5))
        dist.all_gather_into_tensor(gathered, part)
        wrong += sum(not bool((piece == place - 5).all()) for place, piece in enumerate(gathered.chunk(size)))
        gathered.add_(float(rank))
        dist.reduce_scatter_tensor(part, gathered)
        wrong += not bool((part == size * (rank - 5) + sum(range(size))).all())
        figures[f"{name}_all_gather_us"] = median_us(lambda: dist.all_gather_into_tensor(gathered, part), torch)
        figures[f"{name}_all_reduce_us"] = median_us(lambda: dist.all_reduce(values.zero_()), torch)
        torch.cuda.synchronize()
        dist.barrier()
        backend.deregister_mem_pool(pool)
        del values, part, gathered, pool
    return wrong, figures


def nvshmem(torch, dist, rank, size):
    """PyTorch's symmetric memory with NVSHMEM behind it: a peer's memory by its address, and NVSHMEM's own calls."""
    import torch.distributed._symmetric_memory as memory

    if not getattr(memory, "is_nvshmem_available", lambda: False)():
        return None, f"PyTorch {torch.__version__} has no NVSHMEM"
    memory.set_backend("NVSHMEM")
    group, calls = dist.group.WORLD.group_name, torch.ops.symm_mem
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        memory.enable_symm_mem_for_group(group)
    own, sent, taken = (memory.empty(ELEMENTS, dtype=torch.float32, device=f"cuda:{rank}") for _ in range(3))
    handle = [memory.rendezvous(tensor, group) for tensor in (own, sent, taken)][0]

    def together():
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()

    own.fill_(float(rank + 1))
    together()
    neighbour, before = (rank + 1) % size, (rank - 1) % size
    peer, copied = handle.get_buffer(neighbour, (ELEMENTS,), torch.float32), torch.empty_like(own)
    wrong = int(not bool((peer == neighbour + 1).all()))
    figures = {"copy_us": median_us(lambda: copied.copy_(peer), torch)}
    together()
    peer[:STRIDE] = -float(rank + 1)
    together()
    wrong += not bool((own[:STRIDE] == -float(before + 1)).all() and (own[STRIDE:] == rank + 1).all())
    for to, piece in enumerate(sent.chunk(size)):
        piece.fill_(float(rank * size + to))
    together()
    calls.nvshmem_all_to_all(sent, taken, group)
    together()
    wrong += sum(not bool((piece == place * size + rank).all()) for place, piece in enumerate(taken.chunk(size)))
    figures["all_to_all_us"] = median_us(lambda: calls.nvshmem_all_to_all(sent, taken, group), torch)
    together()
    calls.nvshmem_broadcast(sent, 0, group)
    together()
    wrong += sum(not bool((piece == to).all()) for to, piece in enumerate(sent.chunk(size)))
    own.fill_(float(rank + 1))
    together()
    if rank == 0:
        calls.nvshmem_put(own, 1)
    together()
    wrong += not bool((own == (1 if rank < 2 else rank + 1)).all())
    return wrong, figures
