"""Weights from a trainer to vLLM's workers of the node through shared memory: a weight transfer engine of vLLM.

    fdbroker.vllm.register()                            # in the trainer, and in each worker (a plugin of vLLM's, say)
    LLM(..., weight_transfer_config=WeightTransferConfig(backend="fdbroker"))
    trainer = WeightTransferTrainerFactory.trainer_init(fdbroker.vllm.TrainerInit(rank=0), client=client, source=ModuleSource(model))
    trainer.send_weights()                              # each round

A round goes in chunks: each is one piece of memory, which all workers open by its handle and copy from. **It was driven on a CPU alone, never in a
server or with a GPU.** Each process needs the same broker. Must never send bytes of weights through vLLM, nor keep a chunk beyond its round.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Dict, Iterator, Optional

import torch
import vllm
from vllm.distributed.weight_transfer import base
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

from . import torch as shared
from ._default import broker_at, default_broker
from ._errors import NotSupported

#: The name for ``backend=``.
NAME = "fdbroker"
#: Versions of vLLM whose interface this is.
VERSIONS = ("0.33.",)


@dataclass
class Init(base.WeightTransferInitInfo):  # type: ignore[misc]
    """What a worker is told at the beginning."""

    #: The broker's socket, where the trainer's was named or started; None: the worker's own broker.
    socket: Optional[str] = None


@dataclass
class Update(base.WeightTransferUpdateInfo):  # type: ignore[misc]
    """What a worker is told of a chunk."""

    #: In hex, for JSON.
    handle: str


@dataclass
class TrainerInit(base.TrainerInitInfo):  # type: ignore[misc]
    """How a trainer sends. rank: of the trainer's ranks; 0 sends."""

    backend: ClassVar[str] = NAME
    #: Bytes of weights that are sent at once: so much memory beside the weights.
    chunk_bytes: int = 1 << 30
    #: Where a chunk is: ``cpu``, ``cuda:N``, or None for the device of the weights, which each worker has to see.
    device: Optional[str] = None


class Worker(base.WeightTransferEngine):  # type: ignore[misc]
    """The side of the worker: copies each chunk into the model, by the model's own ``load_weights``."""

    init_info_cls, update_info_cls = Init, Update

    def init_transfer_engine(self, init_info: Init) -> None:
        """Connects to the broker. Errors: as of :func:`fdbroker.connect`."""
        self._broker = broker_at(init_info.socket)

    def start_weight_update(self) -> None:
        """Weights come as in a checkpoint: layer by layer."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Update) -> None:
        """One chunk. Errors: as of :meth:`fdbroker.Broker.open`."""
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check

        weights = shared.open_state_dict(bytes.fromhex(update_info.handle), self._broker)
        with disable_mtp_completeness_check():
            self.model.load_weights(list(weights.items()))

    def finish_weight_update(self) -> None:
        """All chunks were there."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing is held between two chunks."""


class Trainer(base.TrainerWeightTransferEngine):  # type: ignore[misc]
    """The side of the trainer. All ranks go through the source, as its collectives need; rank 0 sends."""

    init_info_cls = TrainerInit

    @classmethod
    def trainer_init(cls, init_info: TrainerInit, *, client: Any, source: Any = None) -> "Trainer":
        """Tells the workers of the broker. Errors: ValueError for a source without full tensors."""
        if source is None or not source.implements_iter_full():
            raise ValueError("fdbroker sends full tensors: pass a source that implements iter_full()")
        made = cls(client=client, source=source, is_sender=init_info.is_sender, rank=init_info.rank)
        made._how = init_info
        if made.is_sender:
            client.init_weight_transfer_engine({"socket": default_broker()._live().socket})
        return made

    def _chunks(self) -> Iterator[Dict[str, "torch.Tensor"]]:
        chunk: Dict[str, "torch.Tensor"] = {}
        nbytes = 0
        for name, tensor in self.source.iter_full():
            if not self.is_sender:
                continue
            size = tensor.numel() * tensor.element_size()
            if chunk and nbytes + size > self._how.chunk_bytes:
                yield chunk
                chunk, nbytes = {}, 0
            chunk[name], nbytes = tensor.detach(), nbytes + size
        if chunk:
            yield chunk

    def send_weights(self) -> None:
        """One round. Errors: as of :func:`fdbroker.torch.pack`, and the client's."""
        if self.is_sender:
            self.client.start_weight_update()
        for chunk in self._chunks():
            # Workers that still look at it keep it; its place is not used again before.
            with shared.pack(chunk, device=self._how.device) as sent:
                self.client.update_weights({"handle": sent.handle.hex()})
        if self.is_sender:
            self.client.finish_weight_update()


def register() -> None:
    """Has vLLM know ``backend="fdbroker"``, for workers and trainers.

    Errors: :class:`~fdbroker.NotSupported` for another version of vLLM; ValueError when it was registered before.
    """
    if not vllm.__version__.startswith(VERSIONS):
        raise NotSupported(f"vLLM {vllm.__version__}: this module is for {VERSIONS[0]}*")
    WeightTransferEngineFactory.register_engine(NAME, Worker)
    WeightTransferTrainerFactory.register_engine(NAME, Trainer)


__all__ = ["NAME", "Init", "Trainer", "TrainerInit", "Update", "Worker", "register"]
