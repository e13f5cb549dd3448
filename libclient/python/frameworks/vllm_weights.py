"""fdbroker.vllm with the real vLLM on a CPU: a trainer sends two rounds of weights to two workers, in chunks, through vLLM's own factories and layer-wise
reload. Must never stand for a server or a GPU: models are plain modules of PyTorch."""

import json
import multiprocessing
import os
import sys
import types

import fdbroker
from fdbroker._default import default_broker

ROUNDS, WORKERS, WIDTH = 2, 2, 512
#: So that the first weight is a chunk by itself.
CHUNK_BYTES = 1 << 19


def model():
    import torch
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 8)

        def load_weights(self, weights):
            mine = dict(self.named_parameters())
            for name, weight in weights:
                getattr(mine[name], "weight_loader", default_weight_loader)(mine[name], weight)

    return Model()


def sums(of):
    return {name: float(weight.detach().double().sum()) for name, weight in of.named_parameters()}


def worker(calls, socket):
    os.environ["FDBROKER_SOCKET"] = socket
    import torch
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    from fdbroker import vllm as seam

    seam.register()
    mine = model()
    record_metadata_for_reloading(mine)
    config = types.SimpleNamespace(parallel_config=None, model_config=None)
    engine = WeightTransferEngineFactory.create_engine(WeightTransferConfig(backend="fdbroker"), config, torch.device("cpu"), mine)
    acts = {
        "init": lambda told: engine.init_transfer_engine(engine.parse_init_info(told)),
        "start": lambda _: engine.start_weight_update(),
        # Not update_weights, which waits for an accelerator besides.
        "update": lambda told: engine.receive_weights(engine.parse_update_info(told)),
        "finish": lambda _: engine.finish_weight_update(),
        "sums": lambda _: sums(mine),
    }
    while (call := calls.recv())[0] != "end":
        calls.send(acts[call[0]](json.loads(call[1])))


class Client:
    """vLLM's VLLMWeightSyncClient, by pipes. All that goes by is JSON, as over HTTP."""

    def __init__(self, pipes):
        self.pipes, self.chunks = pipes, 0

    def call(self, what, told=None):
        for pipe in self.pipes:
            pipe.send((what, json.dumps(told)))
        return [pipe.recv() for pipe in self.pipes]

    def init_weight_transfer_engine(self, told):
        self.call("init", told)

    def start_weight_update(self):
        self.call("start")

    def update_weights(self, told):
        self.chunks += 1
        self.call("update", told)

    def finish_weight_update(self, weight_version=None):
        self.call("finish")


def main():
    context = multiprocessing.get_context("spawn")
    with fdbroker.private_broker(max_fds=64) as broker:
        os.environ["FDBROKER_SOCKET"] = broker.socket
        pairs = [context.Pipe() for _ in range(WORKERS)]
        workers = [context.Process(target=worker, args=(theirs, broker.socket)) for _, theirs in pairs]
        for one in workers:
            one.start()
        for _, theirs in pairs:
            theirs.close()
        import torch
        import vllm
        from vllm.distributed.weight_transfer.base import ModuleSource
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        from fdbroker import vllm as seam

        seam.register()
        mine, client = model(), Client([ours for ours, _ in pairs])
        how = seam.TrainerInit(rank=0, chunk_bytes=CHUNK_BYTES)
        trainer = WeightTransferTrainerFactory.trainer_init(how, client=client, source=ModuleSource(mine))
        for _ in range(ROUNDS):
            with torch.no_grad():
                mine.first.weight.add_(1)
            trainer.send_weights()
            assert client.call("sums") == [sums(mine)] * WORKERS
        held = default_broker().stats()["host_bytes_used"]
        assert (client.chunks, held) == (2 * ROUNDS, 0), (client.chunks, held)
        for pipe in client.pipes:
            pipe.send(("end", ""))
        for one in workers:
            one.join()
            assert one.exitcode == 0
        default_broker().close()
    print(f"vllm {vllm.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}: {WORKERS} workers have {ROUNDS} rounds of weights")


if __name__ == "__main__":
    main()
