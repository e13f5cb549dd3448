"""fdbroker.torch.load_safetensors: files of the format as its page describes it, good and bad, by one process and by several."""

import gc
import json
import multiprocessing
import os
import struct
import tempfile
import unittest

import fdbroker
from support import BrokerCase, run_program

try:
    import torch

    import fdbroker.torch as shared_torch
except ImportError:
    torch = None

CODES = {} if torch is None else {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.uint8: "U8", torch.bool: "BOOL",
    torch.complex64: "C64", torch.float64: "F64",
}  # fmt: skip


def bytes_of(tensor):
    return bytes(tensor.reshape(-1).contiguous().view(torch.uint8).tolist()) if tensor.numel() else b""


def write(path, tensors, metadata=None, change=lambda table: None, data=None, pad=True):
    """A safetensors file: 8 bytes of the header's length, the header, the bytes of the tensors one behind the other."""
    table, body = {} if metadata is None else {"__metadata__": metadata}, b""
    for name, tensor in tensors.items():
        part = bytes_of(tensor if tensor.dtype != torch.bool else tensor.to(torch.uint8))
        table[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + len(part)]}
        body += part
    change(table)
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8 if pad else 0)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + (body if data is None else data))
    return path


def loader(socket, paths, start, answers):
    """A process that loads: answers the sum of all tensors, how often the files were read, and how many objects there are."""
    import fdbroker.torch

    read = []
    with fdbroker.connect(socket) as broker:
        start.wait()
        weights = fdbroker.torch.load_safetensors(paths, broker, progress=lambda done, of: read.append((done, of)), timeout=60)
        answers.put((sum(float(t.double().sum()) for t in weights.values()), bool(read) and read[-1], len(list(broker.list("safetensors/")))))
        start.wait()


@unittest.skipIf(torch is None, "PyTorch is not installed here")
class Safetensors(BrokerCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name="model.safetensors"):
        return os.path.join(self.folder, name)

    def tensors(self):
        base = torch.arange(24.0)
        return {
            "matrix": base.view(4, 6), "half": base.to(torch.float16), "brain": base.to(torch.bfloat16), "long": torch.arange(5),
            "flags": torch.tensor([True, False, True]), "scalar": torch.tensor(7.5), "none": torch.empty(0, 3), "double": base.double(),
        }  # fmt: skip

    def test_tensors_when_loaded_then_views_of_one_memory_with_their_types_and_shapes(self):
        expected = self.tensors()
        write(self.path(), expected, {"format": "pt"})
        found = shared_torch.load_safetensors(self.path(), self.broker, populate=True)
        self.assertEqual((set(found), found.metadata, found.is_current, len(found.names)), (set(expected), {"format": "pt"}, True, 1))
        for name, tensor in expected.items():
            self.assertTrue(found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name)
        # The tensors of one byte each are not aligned behind them: one is a copy, and right.
        again = shared_torch.load_safetensors(self.path(), self.other)
        self.assertEqual(again.names, found.names)
        self.assertEqual((self.ledger("mapped_leases"), len(list(self.broker.list()))), (2, 1))
        del again
        gc.collect()
        self.eventually(lambda: self.ledger("mapped_leases") == 1)
        self.assertTrue(torch.equal(found["matrix"], expected["matrix"]))

    def test_file_when_replaced_then_read_anew_and_the_former_tensors_stay(self):
        write(self.path(), {"a": torch.ones(1000)})
        first = shared_torch.load_safetensors(self.path(), self.broker)
        write(self.path("new"), {"a": torch.full((1000,), 2.0)})
        os.rename(self.path("new"), self.path())
        second = shared_torch.load_safetensors(self.path(), self.broker)
        self.assertEqual((float(first["a"].sum()), float(second["a"].sum())), (1000.0, 2000.0))

    def test_file_when_replaced_by_one_of_equal_times_and_place_then_read_anew(self):
        # As tar and cp -p do, with the times of a reproducible archive.
        for value in (1.0, 2.0):
            write(self.path(), {"a": torch.full((1000,), value)})
            os.utime(self.path(), ns=(0, 0))
            found = shared_torch.load_safetensors(self.path(), self.broker, keep=60)
            self.assertEqual(float(found["a"].sum()), 1000 * value)

    def test_files_when_some_are_there_then_those_are_taken_but_not_under_a_prefix(self):
        paths = [write(self.path(f"{n}.safetensors"), {f"layer{n}": torch.full((10,), float(n))}) for n in range(3)]
        for part in (paths[:2], [paths[1], paths[0]], paths, paths[2:]):
            found = shared_torch.load_safetensors(part, self.broker, keep=60, timeout=0)
            self.assertEqual(len(found), len(part))
        self.assertEqual(len(list(self.broker.list("safetensors/"))), 3)
        shared_torch.load_safetensors(paths[:2], self.broker, prefix="m/", keep=60)
        with self.assertRaisesRegex(fdbroker.Exists, "'m/1.safetensors' is there and 'm/2.safetensors' is not"):
            shared_torch.load_safetensors(paths[1:], self.broker, prefix="m/")

    def test_files_when_another_process_makes_them_then_timed_out_and_no_sooner(self):
        path = write(self.path(), {"a": torch.ones(10)})
        with self.other.create({"m/model.safetensors": (os.path.getsize(path), "uint8")}):
            with self.assertRaisesRegex(fdbroker.TimedOut, "another process makes 'm/model.safetensors'"):
                shared_torch.load_safetensors(path, self.broker, prefix="m/", timeout=0.2)

    def test_shards_when_several_files_then_one_dict_of_one_moment(self):
        paths = [write(self.path(f"{n}.safetensors"), {f"layer{n}": torch.full((n + 1,), float(n))}) for n in range(5)]
        told = []
        found = shared_torch.load_safetensors(paths, self.broker, prefix="model/", keep=60, progress=lambda *at: told.append(at))
        self.assertEqual(sorted(found), [f"layer{n}" for n in range(5)])
        self.assertEqual(told[-1], (sum(map(os.path.getsize, paths)),) * 2)
        self.assertEqual(found.names, [f"model/{n}.safetensors" for n in range(5)])
        self.assertEqual(float(shared_torch.load_safetensors("model/", self.other)["layer4"].sum()), 20.0)
        write(self.path("twice.safetensors"), {"layer4": torch.ones(1)})
        with self.assertRaisesRegex(fdbroker.InvalidArgument, "'layer4' is in"):
            shared_torch.load_safetensors([paths[4], self.path("twice.safetensors")], self.broker)
        with self.assertRaisesRegex(fdbroker.NotFound, "fdbroker put none/"):
            shared_torch.load_safetensors("none/", self.broker)

    def test_files_when_put_by_the_command_then_loaded_by_their_prefix(self):
        paths = [write(self.path(f"{n}.safetensors"), {f"layer{n}": torch.full((1000,), float(n))}) for n in range(3)]
        run_program(self.broker, "put", "model/", *paths)
        found = shared_torch.load_safetensors("model/", self.broker)
        self.assertEqual([float(found[f"layer{n}"].sum()) for n in range(3)], [0.0, 1000.0, 2000.0])
        write(paths[0], {"layer0": torch.full((1000,), 9.0)})
        run_program(self.broker, "put", "--replace", "model/", *paths)
        self.assertFalse(found.is_current)
        self.assertEqual(float(found["layer0"].sum()), 0.0)
        self.assertEqual(float(shared_torch.load_safetensors("model/", self.broker)["layer0"].sum()), 9000.0)

    def test_processes_when_they_load_at_once_then_one_reads_and_all_have_the_same(self):
        paths = [write(self.path(f"{n}.safetensors"), {f"layer{n}": torch.full((200_000,), 1.0)}) for n in range(3)]
        context = multiprocessing.get_context("spawn")
        start, answers = context.Barrier(4), context.Queue()
        processes = [context.Process(target=loader, args=(self.broker.socket, paths, start, answers)) for _ in range(4)]
        for one in processes:
            one.start()
        found = [answers.get(timeout=120) for _ in processes]
        for one in processes:
            one.join()
        total = sum(map(os.path.getsize, paths))
        self.assertEqual([one[0] for one in found], [600_000.0] * 4)
        self.assertEqual(sorted(map(repr, (one[1] for one in found))), [repr((total, total))] + ["False"] * 3)
        self.assertEqual([one[2] for one in found], [3] * 4)

    def refused(self, error, words, *arguments, **options):
        write(self.path(), *arguments, **options)
        with self.assertRaisesRegex(error, words):
            shared_torch.load_safetensors(self.path(), self.broker)
        self.assertEqual(list(self.broker.list()), [])

    def test_file_when_it_is_wrong_then_refused_before_anything_is_made(self):
        good, invalid = {"a": torch.ones(4), "b": torch.ones(2)}, fdbroker.InvalidArgument

        def entry(name, **changes):
            return lambda table: table[name].update(changes)

        self.refused(invalid, "it was cut", good, data=bytes(20))
        self.refused(invalid, "something was added", good, data=bytes(25))
        self.refused(invalid, "begins at byte", good, change=entry("b", data_offsets=[20, 28]), data=bytes(28))
        self.refused(invalid, "begins at byte", good, change=entry("b", data_offsets=[8, 16]), data=bytes(16))
        self.refused(invalid, "need 16", good, change=entry("a", data_offsets=[0, 12]))
        self.refused(invalid, "begins at byte|need", good, change=entry("a", data_offsets=[-8, 8]))
        self.refused(invalid, "shape", good, change=entry("a", shape=[-2, -2]))
        self.refused(invalid, "need", good, change=entry("a", shape=[1 << 62, 1 << 62]))
        self.refused(invalid, "cannot be read", good, change=entry("a", shape=7))
        self.refused(invalid, "cannot be read", good, change=lambda table: table.update(a=3))
        self.refused(invalid, "shape", good, change=entry("a", shape=[True, 4]))
        self.refused(invalid, "shape", good, change=entry("a", shape=[1 << 70, 0]))
        self.refused(invalid, "need 16", good, change=entry("a", data_offsets=[0, 16.0]))
        self.refused(invalid, "no strings", good, {"format": 1})
        self.refused(fdbroker.NotSupported, "'a' is of F4", good, change=entry("a", dtype="F4"))
        deep, twice = b"[" * 200_000, b'{"a":1,"a":2}'
        odd = [struct.pack("<Q", len(it)) + it for it in (deep, twice, b" {}", "{}".encode("utf-16"))]
        for content in (*odd, b"", b"1234567", struct.pack("<Q", 1 << 40) + b"{}", struct.pack("<Q", 9) + b"{}", struct.pack("<Q", 2) + b"{]", struct.pack("<Q", 2) + b"[]"):
            with open(self.path(), "wb") as file:
                file.write(content)
            with self.assertRaisesRegex(invalid, "is no safetensors file", msg=content):
                shared_torch.load_safetensors(self.path(), self.broker)
        os.mkfifo(self.path("fifo"))
        for path in (self.path("fifo"), "/dev/null"):
            with self.assertRaisesRegex(invalid, "no regular file"):
                shared_torch.load_safetensors(path, self.broker)
        with self.assertRaises(FileNotFoundError):
            shared_torch.load_safetensors(self.path("missing"), self.broker)
        self.broker.put("text/a", b"no weights at all, but text")
        with self.assertRaisesRegex(invalid, "'text/a' is no safetensors file"):
            shared_torch.load_safetensors("text/", self.broker)

    def test_file_when_it_changes_while_it_is_read_then_refused_and_nothing_is_made(self):
        write(self.path(), {"a": torch.ones(100)})

        def change(done, of):
            with open(self.path(), "r+b") as file:
                file.seek(-4, os.SEEK_END)
                file.write(b"1234")
            os.utime(self.path(), ns=(1, 1))

        with self.assertRaisesRegex(fdbroker.InvalidArgument, "changed while it was read"):
            shared_torch.load_safetensors(self.path(), self.broker, progress=change)
        self.assertEqual(list(self.broker.list()), [])

    def test_file_when_there_is_no_room_then_no_quota_before_it_is_read(self):
        small = fdbroker.private_broker(settings={"caps.client.held_bytes": 1 << 20})
        self.addCleanup(small.close)
        write(self.path(), {"a": torch.zeros(1 << 20)})
        told = []
        with self.assertRaises(fdbroker.NoQuota):
            shared_torch.load_safetensors(self.path(), small, progress=lambda *at: told.append(at))
        self.assertEqual(told, [])
