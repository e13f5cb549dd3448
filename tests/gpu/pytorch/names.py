"""New weights from the first GPU to the others, by name through fdbroker and by a broadcast of NCCL. A rank of devices.py. Must never look at
one of the two ways alone: the other's bytes are what it is compared with.
"""

import statistics
import time

NAME, TENSORS, ELEMENTS, ROUNDS = "weights", 64, 8 << 20, 6
PATIENCE_S = 60.0


def names(torch, dist, rank, _size):
    import fdbroker
    import fdbroker.torch

    broker = fdbroker.connect()
    sent, taken = ({f"layer{number}": torch.zeros(ELEMENTS, device="cuda") for number in range(TENSORS)} for _ in range(2))
    wrong, times = 0, {"broadcast_us": [], "put_us": [], "get_us": [], "names_us": []}

    def together():
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        return time.perf_counter()

    def passed(name, begin):
        """The time on the slowest GPU."""
        torch.cuda.synchronize()
        elapsed = torch.tensor((time.perf_counter() - begin) * 1e6, device="cuda")
        dist.all_reduce(elapsed, dist.ReduceOp.MAX)
        times[name].append(float(elapsed))

    for version in range(1, ROUNDS + 1):
        if rank == 0:
            torch.manual_seed(version)
            for tensor in sent.values():
                tensor.normal_()
        begin = together()
        for tensor in sent.values():
            dist.broadcast(tensor, 0)
        passed("broadcast_us", begin)
        all_begin = begin = together()
        if rank == 0:
            fdbroker.torch.put_state_dict(NAME, sent, broker, replace=True, timeout=PATIENCE_S)
        passed("put_us", begin)
        begin = together()
        if rank != 0:
            # The memory stays where it is; this GPU reads it there.
            found = fdbroker.torch.get_state_dict(NAME, broker, device=f"cuda:{rank}", timeout=PATIENCE_S)
            for name, tensor in taken.items():
                tensor.copy_(found[name])
            torch.cuda.synchronize()
            del found
        passed("get_us", begin)
        passed("names_us", all_begin)
        if rank != 0:
            wrong += sum(not torch.equal(taken[name].view(torch.int32), sent[name].view(torch.int32)) for name in taken)
            wrong += not bool(taken["layer0"].any())
    together()
    if rank == 0:
        broker.delete(NAME)
    broker.close()
    mib = TENSORS * ELEMENTS * 4 >> 20
    return wrong, {"mib": mib, **{name: round(statistics.median(values[1:])) for name, values in times.items()}}
