"""fdbroker.ray with the real Ray on a CPU: tensors from one actor to another and to the driver, in place, as copies, in a dict, and their end.
Must never leave a cluster of Ray behind."""

import os
import sys
import time

import fdbroker

#: Seconds that only a hang exceeds.
LIMIT_S = 60


def eventually(condition):
    until = time.monotonic() + LIMIT_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    assert condition()


def main():
    with fdbroker.private_broker(max_fds=64) as broker:
        os.environ["FDBROKER_SOCKET"] = broker.socket
        import ray
        import torch

        from fdbroker import ray as seam

        seam.register()
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)

        @ray.remote(num_cpus=0, enable_tensor_transport=True)
        class Actor:
            @ray.method(tensor_transport=seam.NAME)
            def copied(self, value):
                return torch.full((1000, 1000), float(value))

            @ray.method(tensor_transport=seam.NAME)
            def in_place(self):
                from fdbroker.torch import empty

                self.kept = empty(1000)
                self.kept.fill_(1)
                return self.kept

            @ray.method(tensor_transport=seam.NAME)
            def several(self):
                return {"a": torch.arange(10), "b": torch.ones(3, 4).t()}

            def change(self, value):
                self.kept.fill_(value)

            def keep(self, tensor):
                self.seen = tensor

            def total(self, tensor=None):
                return float((self.seen if tensor is None else tensor).sum())

            def look(self, tensors):
                return int(tensors["a"].sum()), tuple(tensors["b"].shape)

            def shared(self):
                from ray.experimental.rdt.util import get_tensor_transport_manager

                return len(get_tensor_transport_manager(seam.NAME.upper())._kept)

        sender, receiver = Actor.remote(), Actor.remote()
        made = sender.copied.remote(3)
        assert ray.get(receiver.total.remote(made)) == 3e6
        assert float(ray.get(made).sum()) == 3e6
        assert ray.get(receiver.look.remote(sender.several.remote())) == (45, (4, 3))
        # The same bytes, without a copy.
        placed = sender.in_place.remote()
        ray.get(receiver.keep.remote(placed))
        assert ray.get(receiver.total.remote()) == 1000
        ray.get(sender.change.remote(2))
        assert ray.get(receiver.total.remote()) == 2000
        # Nothing is kept when nobody has the objects; who has opened the memory keeps it.
        del made, placed
        eventually(lambda: ray.get(sender.shared.remote()) == 0)
        assert ray.get(receiver.total.remote()) == 2000
        versions = ray.__version__, torch.__version__
        ray.shutdown()
    print(f"ray {versions[0]}, torch {versions[1]}, Python {sys.version.split()[0]}: tensors of two actors and the driver are right")


if __name__ == "__main__":
    main()
