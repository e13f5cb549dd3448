"""A trainer and two inference processes: new weights under one name, used where they are, without a copy and without a stop.

    python weights.py                   # numpy, on the host
    python weights.py --device cuda     # PyTorch: the weights stay on the GPU

It starts a broker of its own, checks each number, and ends by itself. Must never use weights of two versions at once.
"""

import argparse
import multiprocessing
import time
from typing import Any, Dict, Tuple

import fdbroker

STEPS = 5
LAYERS = [f"model/layer{number}" for number in range(4)]
SHAPE = (256, 1024)
#: Seconds that only a hang exceeds.
LIMIT_S = 60


def weights_of(step: int, device: str) -> Dict[str, Any]:
    """The weights after a step of the training; every number of every step is another."""
    first: Any
    if device == "cpu":
        import numpy

        first = numpy.arange(SHAPE[0] * SHAPE[1], dtype="float32").reshape(SHAPE)
    else:
        import torch

        first = torch.arange(SHAPE[0] * SHAPE[1], dtype=torch.float32, device=device).view(SHAPE)
    return {layer: first + 1000 * step + number for number, layer in enumerate(LAYERS)}


def publish(broker: fdbroker.Broker, step: int, device: str) -> int:
    """All layers appear at one moment, and take the place of those before. The version."""
    weights, about = weights_of(step, device), str(step).encode()
    if device == "cpu":
        return broker.put_many(weights, metadata={layer: about for layer in LAYERS}, replace=True, timeout=LIMIT_S)[0]
    import fdbroker.torch

    return fdbroker.torch.put_state_dict("model", weights, broker, metadata=about, replace=True, timeout=LIMIT_S)


def fetch(broker: fdbroker.Broker, device: str) -> Tuple[Dict[str, Any], Any]:
    """The newest weights, all of one version: (layers by name, an object that knows version, metadata and whether it is current)."""
    if device == "cpu":
        layers = broker.get_many(LAYERS, timeout=LIMIT_S)
        return {layer.name: layer.numpy() for layer in layers}, layers[0]
    import fdbroker.torch

    state = fdbroker.torch.get_state_dict("model", broker, timeout=LIMIT_S)
    return state, state


def infer(number: int, socket: str, device: str, seen: Any) -> None:
    """An inference process: serves with the weights that it has, until there are newer ones."""
    step = 0
    with fdbroker.connect(socket) as broker:
        while step < STEPS:
            weights, about = fetch(broker, device)
            step = int(about.metadata)
            expected = weights_of(step, device)
            assert all((weights[layer] == expected[layer]).all() for layer in LAYERS), f"step {step} has a wrong number"
            print(f"inference {number}: step {step}, version {about.version}, {len(LAYERS)} layers are right", flush=True)
            seen.put(step)
            until = time.monotonic() + LIMIT_S
            while step < STEPS and about.is_current:
                assert time.monotonic() < until, "no newer weights"
                # Here requests would be answered. Asking whether the weights are current sends nothing.
                time.sleep(0.002)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, or cuda or cuda:N with PyTorch")
    device = parser.parse_args().device
    context = multiprocessing.get_context("spawn")
    seen = context.Queue()
    with fdbroker.private_broker(max_fds=64) as broker:
        readers = [context.Process(target=infer, args=(number, broker.socket, device, seen), daemon=True) for number in range(2)]
        for reader in readers:
            reader.start()
        for step in range(1, STEPS + 1):
            print(f"trainer: step {step} is version {publish(broker, step, device)}", flush=True)
            # A trainer need not wait: a slow reader skips versions. Here both see each of them.
            assert [seen.get(timeout=LIMIT_S) for _ in readers] == [step] * len(readers)
        for reader in readers:
            reader.join(LIMIT_S)
            assert reader.exitcode == 0
    print(f"{len(readers)} processes used {STEPS} versions of the weights: every number is right")


if __name__ == "__main__":
    main()
