"""Steps of training on several GPUs by DDP and by FSDP2, whose losses are the same bit by bit in each run. A rank of devices.py. Must
never use what is not deterministic.
"""

import time

WIDTH, BLOCKS, BATCH, STEPS = 2048, 4, 64, 12


def model(torch):
    nn = torch.nn

    def block():
        return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    return nn.Sequential(*[block() for _ in range(BLOCKS)]).cuda()


def trained(torch, rank, net):
    """The losses, bit by bit, and sums over the bits of all parameters that this rank has."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    random, losses, times = torch.Generator(f"cuda:{rank}"), [], []
    for step in range(STEPS):
        random.manual_seed(1000 * step + rank)
        given, wanted = (torch.randn(BATCH, WIDTH, device="cuda", generator=random) for _ in range(2))
        begin = time.perf_counter()
        loss = torch.nn.functional.mse_loss(net(given), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e6)
    own = [getattr(it, "to_local", lambda it=it: it)().detach() for it in net.parameters()]
    bits = sum(int(it.contiguous().view(torch.int32).sum(dtype=torch.int64)) for it in own if it.numel())
    finite = all(abs(float.fromhex(it)) < 1e6 for it in losses)
    return int(not finite), {"losses": losses, "bits": bits, "step_us": round(sorted(times)[STEPS // 2])}


def prepare(torch):
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(7)


def ddp(torch, _dist, rank, _size):
    prepare(torch)
    return trained(torch, rank, torch.nn.parallel.DistributedDataParallel(model(torch), device_ids=[rank]))


def fsdp(torch, _dist, rank, _size):
    from torch.distributed.fsdp import fully_shard

    prepare(torch)
    net = model(torch)
    for block in net:
        fully_shard(block)
    return trained(torch, rank, fully_shard(net))
