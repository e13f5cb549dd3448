"""Tensors between Ray's actors of a node through shared memory: a tensor transport of Ray, for the CPU and CUDA.

    fdbroker.ray.register()                             # in the driver, before it makes actors

    @ray.remote(enable_tensor_transport=True)
    class Trainer:
        @ray.method(tensor_transport="fdbroker")
        def weights(self):
            return torch.rand(1024, 1024)

Ray's interface is alpha, so this module takes the versions that it was run with alone. Each process needs the same broker (FDBROKER_SOCKET, or
FDBROKER_START=1). Must never send bytes through Ray, nor end memory that an object of Ray names.
"""

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

import ray
import torch
from ray.experimental import TensorTransportManager, register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import CommunicatorMetadata, TensorTransportMetadata

from . import torch as shared
from ._default import broker_at, default_broker
from ._errors import NotSupported

#: The name for ``tensor_transport=``.
NAME = "fdbroker"
#: Versions of Ray whose interface this is.
VERSIONS = ("2.60.",)


@dataclass
class Metadata(TensorTransportMetadata):  # type: ignore[misc]
    """What goes by Ray: where the tensors are."""

    #: The broker's socket, where the sender's was named or started; None: the receiver's own broker.
    socket: Optional[str] = None
    #: Of :func:`fdbroker.torch.share`.
    tensors: Tuple[shared.SharedTensor, ...] = ()


class Transport(TensorTransportManager):  # type: ignore[misc]
    """A tensor in memory of the broker's (:func:`fdbroker.torch.empty`, :func:`fdbroker.torch.pool`) is sent as it is; of any other, a copy
    is shared. A receiver has the same bytes, and keeps them. What is written into them all others see: clone what is to be changed."""

    def __init__(self) -> None:
        # Of each object of Ray, what keeps its memory.
        self._kept: Dict[str, List["torch.Tensor"]] = {}

    def tensor_transport_backend(self) -> str:
        """Its name."""
        return NAME.upper()

    @staticmethod
    def is_one_sided() -> bool:
        """The sender does nothing when a receiver opens."""
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        """An open ends by itself, within its timeout."""
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        """Ray asks before it sends; who cannot open says so then."""
        return True

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: List["torch.Tensor"]) -> Metadata:
        """In the sender: shares the tensors. Errors: as of :func:`fdbroker.torch.copy`."""
        broker = default_broker()
        kept, rows = [], []
        for tensor in rdt_object:
            try:
                row = shared.share(tensor, broker)
            except NotSupported:
                tensor = shared.copy(tensor, broker)
                row = shared.share(tensor, broker)
            kept.append(tensor.detach())
            rows.append(row)
        self._kept[obj_id] = kept
        return Metadata(
            [(tensor.shape, tensor.dtype) for tensor in rdt_object], rdt_object[0].device.type if rdt_object else None,
            broker._live().socket, tuple(rows),
        )  # fmt: skip

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: Optional[str] = None) -> CommunicatorMetadata:
        """Nothing: sender and receiver need not know each other."""
        return CommunicatorMetadata()

    def recv_multiple_tensors(
        self, obj_id: str, tensor_transport_metadata: Metadata, communicator_metadata: CommunicatorMetadata,
        target_buffers: Optional[List["torch.Tensor"]] = None,
    ) -> List["torch.Tensor"]:  # fmt: skip
        """In the receiver: opens them, or copies into ``target_buffers``. Errors: as of :func:`fdbroker.torch.open`, such as WrongNode."""
        broker = broker_at(tensor_transport_metadata.socket)
        opened = [shared.open(row, broker) for row in tensor_transport_metadata.tensors]
        if not target_buffers:
            return opened
        for target, tensor in zip(target_buffers, opened):
            target.copy_(tensor)
        return list(target_buffers)

    def send_multiple_tensors(self, tensors: Any, tensor_transport_metadata: Any, communicator_metadata: Any) -> None:
        """Never called: it is one-sided."""
        raise NotImplementedError

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Metadata, tensors: List["torch.Tensor"]) -> None:
        """In the sender: nobody has the object any more. Who has opened its memory keeps that."""
        self._kept.pop(obj_id, None)

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        """Nothing is under way."""


def register() -> None:
    """Has Ray know ``tensor_transport="fdbroker"``: in the driver, before it makes the actors, which need this package, too.

    Errors: :class:`~fdbroker.NotSupported` for another version of Ray; ValueError when it was registered before.
    """
    if not ray.__version__.startswith(VERSIONS):
        raise NotSupported(f"Ray {ray.__version__}: its tensor transports are alpha, and this module is for {VERSIONS[0]}*")
    register_tensor_transport(NAME, ["cpu", "cuda"], Transport, torch.Tensor)


__all__ = ["NAME", "Metadata", "Transport", "register"]
