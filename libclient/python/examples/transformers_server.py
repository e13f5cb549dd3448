"""A model of Hugging Face's transformers in several processes: its weights once in memory, a new version under them, and one killed and back.

    python transformers_server.py                       # four processes, a small model; random weights from a configuration
    python transformers_server.py --hidden 1024 --layers 12     # of a GiB

It starts a broker of its own, checks each output, and ends by itself. Beside fdbroker stands `from_pretrained`. Times are from the end of the
imports to the first output, in ms; bytes are the processes' own share (PSS). Must never answer with weights of two versions mixed.
"""

import argparse
import glob
import multiprocessing
import shutil
import tempfile
import time
from typing import Any, Dict, List

import fdbroker

PREFIX, PROCESSES = "model/", 4
#: Seconds that only a hang exceeds.
LIMIT_S = 600
TOKENS = [[7]]


def output(model: Any) -> float:
    """What a model answers: a number of its logits."""
    import torch

    with torch.no_grad():
        return float(model(torch.tensor(TOKENS), use_cache=False).logits.double().sum())


def save(folder: str, options: argparse.Namespace, seed: int) -> float:
    """Random weights in safetensors files, and what the model answers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=32000, hidden_size=options.hidden, intermediate_size=4 * options.hidden, num_hidden_layers=options.layers,
        num_attention_heads=8, num_key_value_heads=8,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder, max_shard_size="500MB")
    return output(model)


def adopt(model: Any, weights: Dict[str, Any]) -> None:
    """The tensors themselves become the model's, not copies: as load_state_dict(assign=True) of PyTorch 2.1 and later."""
    import torch

    for name, tensor in weights.items():
        module, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(module), leaf, torch.nn.Parameter(tensor, requires_grad=False))
    model.tie_weights()


def share_of_memory() -> int:
    with open("/proc/self/smaps_rollup") as rollup:
        return next(int(line.split()[1]) << 10 for line in rollup if line.startswith("Pss:"))


def server(way: str, socket: str, folder: str, requests: Any) -> None:
    """A process that serves: loads, answers, and again with the newest version when it is asked."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_utils import no_init_weights

    from fdbroker.torch import load_safetensors

    torch.set_num_threads(1)
    before, begin = share_of_memory(), time.monotonic()
    weights: Any = None
    if way == "fdbroker":
        broker = fdbroker.connect(socket)
        # As long as a program is needed to come back in, whoever has read the files.
        files = sorted(glob.glob(folder + "/*.safetensors"))
        weights = load_safetensors(files, broker, prefix=PREFIX, populate=True, keep=LIMIT_S, progress=lambda done, of: None)
        with no_init_weights():
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
        adopt(model, weights)
    else:
        model = AutoModelForCausalLM.from_pretrained(folder)
    model.eval()
    first = output(model)
    requests.send((first, time.monotonic() - begin))
    while requests.recv() == "ask":
        if weights is not None and not weights.is_current:
            weights = load_safetensors(PREFIX, broker)
            adopt(model, weights)
        requests.send((output(model), share_of_memory() - before))


class Server:
    def __init__(self, way: str, socket: str, folder: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.requests, theirs = context.Pipe()
        self.process = context.Process(target=server, args=(way, socket, folder, theirs))
        self.process.start()
        theirs.close()

    def hear(self, expected: float) -> float:
        """The number beside an output, which has to be the expected one."""
        if not self.requests.poll(LIMIT_S):
            raise TimeoutError("a process does not answer")
        found, beside = self.requests.recv()
        assert abs(found - expected) <= 1e-5 * max(abs(expected), 1), (found, expected)
        return float(beside)

    def ask(self, expected: float) -> float:
        self.requests.send("ask")
        return self.hear(expected)

    def end(self) -> None:
        self.requests.send("end")
        self.process.join()


def show(way: str, socket: str, folder: str, expected: float) -> List[Server]:
    """All at once, then one that is killed and comes back. The line of the table; the processes that serve."""
    servers = [Server(way, socket, folder) for _ in range(PROCESSES)]
    cold = max(one.hear(expected) for one in servers)
    used = sum(one.ask(expected) for one in servers)
    servers[0].process.kill()
    servers[0].process.join()
    servers[0] = Server(way, socket, folder)
    back = servers[0].hear(expected)
    print(f"{way:<16}{cold * 1e3:>18.0f}{back * 1e3:>18.0f}{used / 2**20:>12.0f}", flush=True)
    return servers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=256, help="size of a layer [256]")
    parser.add_argument("--layers", type=int, default=4, help="how many [4]")
    options = parser.parse_args()
    folders = [tempfile.mkdtemp(prefix="fdbroker-model-") for _ in range(2)]
    try:
        with fdbroker.private_broker() as broker:
            first, second = (save(folder, options, seed) for seed, folder in enumerate(folders))
            print(f"{'':<16}{'first output, ms':>18}{'killed, back, ms':>18}{'MiB of all':>12}")
            for one in show("from_pretrained", broker.socket, folders[0], first):
                one.end()
            servers = show("fdbroker", broker.socket, folders[0], first)
            # A new version, while they serve: each goes over to it between two answers.
            import transformers

            from fdbroker.torch import load_safetensors

            broker.delete_prefix(PREFIX)
            new = load_safetensors(sorted(glob.glob(folders[1] + "/*.safetensors")), broker, prefix=PREFIX, progress=lambda done, of: None)
            assert new.is_current
            for one in servers:
                one.ask(second)
                one.end()
            print(f"transformers {transformers.__version__}: {PROCESSES} processes answered with two versions of one copy: every number is right")
    finally:
        for folder in folders:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
