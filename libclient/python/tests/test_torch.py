"""fdbroker.torch: tensors of the CPU everywhere where PyTorch is, and of CUDA where there is a GPU."""

import gc
import multiprocessing
import os
import pickle
import resource
import threading
import unittest

import fdbroker
from support import BrokerCase, StandInCase, in_child

try:
    import torch

    import fdbroker.torch as shared_torch
except ImportError:
    torch = None

HAS_CUDA = torch is not None and torch.cuda.is_available()
needs_torch = unittest.skipIf(torch is None, "PyTorch is not installed here")
needs_cuda = unittest.skipUnless(HAS_CUDA, "no PyTorch with CUDA here")


def reader(socket, requests, answers):
    """A process that opens tensors: answers their sums and doubles them."""
    import fdbroker.torch

    broker = fdbroker.connect(socket)
    for shared in iter(requests.get, None):
        try:
            tensor = fdbroker.torch.open(shared, broker)
            answers.put((str(tensor.device), float(tensor.double().sum())))
            tensor.mul_(2)
            if tensor.is_cuda:
                torch.cuda.synchronize()
            del tensor
        except Exception as error:
            answers.put((type(error).__name__, str(error)))
        answers.put("done")


def sender(queue, go):
    """A process that sends tensors of its own by torch.multiprocessing, and drops them at once."""
    import fdbroker.torch

    fdbroker.torch.install()
    for number in range(40):
        queue.put(torch.full((100, 10), float(number)))
    queue.put(torch.nn.Parameter(torch.ones(3)))
    go.wait(60)


class Reader:
    def __init__(self, case):
        context = multiprocessing.get_context("spawn")
        self.requests, self.answers = context.Queue(), context.Queue()
        self.process = context.Process(target=reader, args=(case.broker.socket, self.requests, self.answers))
        self.process.start()
        case.addCleanup(self.end)

    def ask(self, shared):
        self.requests.put(shared)
        answer = self.answers.get(timeout=120)
        assert self.answers.get(timeout=120) == "done"
        return answer

    def end(self):
        self.requests.put(None)
        self.process.join()


@needs_torch
class Cpu(BrokerCase):
    def test_tensor_when_shared_then_the_same_bytes_in_another_process(self):
        consumer = Reader(self)
        tensor = shared_torch.empty((4, 5), torch.float64, broker=self.broker)
        tensor.copy_(torch.arange(20).reshape(4, 5))
        self.assertEqual(consumer.ask(shared_torch.share(tensor, self.broker)), ("cpu", 190.0))
        self.assertEqual(tensor.sum().item(), 380.0)
        column = tensor[1:, 2]
        before = column.sum().item()
        self.assertEqual(consumer.ask(shared_torch.share(column, self.broker)), ("cpu", before))
        self.assertEqual(column.sum().item(), 2 * before)

    def test_tensor_when_of_each_type_then_equal(self):
        for dtype in (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64):
            source = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype)
            tensor = shared_torch.copy(source, self.broker)
            opened = shared_torch.open(shared_torch.share(tensor, self.broker), self.other)
            self.assertTrue(opened.dtype == dtype and torch.equal(opened, source), dtype)

    def test_object_when_forked_workers_of_a_loader_read_it_then_each_number_is_right(self):
        from torch.utils.data import DataLoader, TensorDataset

        with self.broker.empty((4096, 64), "float32") as made:
            torch.from_dlpack(made).fill_(1)
            self.broker.put("data/y", made)
        tensor = torch.from_dlpack(self.broker.get("data/y").unmarked())
        for workers in (1, 2, 4):
            loader = DataLoader(TensorDataset(tensor), batch_size=64, num_workers=workers, multiprocessing_context="fork", timeout=60)
            wrong = [int((batch != 1).sum()) for (batch,) in loader]
            self.assertEqual(wrong, [0] * 64)

    def test_tensor_when_not_in_shared_memory_then_not_supported_and_says_what_to_do(self):
        with self.assertRaisesRegex(fdbroker.NotSupported, "fdbroker.torch.empty"):
            shared_torch.share(torch.ones(3), self.broker)

    def test_memory_when_the_last_view_is_gone_then_given_back(self):
        tensor = shared_torch.copy(torch.ones(100), self.broker)
        view = tensor[10:20]
        opened = shared_torch.open(shared_torch.share(tensor, self.broker), self.other)
        del tensor
        gc.collect()
        self.assertEqual(self.broker.stats()["registrations"], 1)
        self.assertEqual(view.sum().item() + opened.sum().item(), 110)
        del view, opened
        gc.collect()
        self.assertEqual((self.broker.stats()["registrations"], self.other.stats()["pinned"]), (0, 0))

    def test_from_dlpack_when_opened_then_the_same_bytes(self):
        made = self.broker.zeros((2, 3), "float32")
        torch.from_dlpack(made).add_(1)
        opened = self.other.open(made.handle, (2, 3), "float32", writable=True)
        self.assertEqual(torch.from_dlpack(opened).sum().item(), 6)

    def test_state_dict_when_packed_then_all_tensors_are_views_of_one_memory(self):
        model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.BatchNorm1d(20))
        packed = shared_torch.pack({**model.state_dict(), "epoch": 7}, self.broker)
        state = shared_torch.open_state_dict(packed.handle, self.other)
        self.assertEqual(state.pop("epoch"), 7)
        self.assertEqual(list(state), list(model.state_dict()))
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(state[name], tensor), name)
        self.assertEqual(self.other.stats()["pinned"], 1)
        with self.assertRaisesRegex(ValueError, "no state dict"):
            other = self.broker.zeros(100)
            shared_torch.open_state_dict(other.handle, self.other)

    def test_state_dict_when_put_under_a_name_then_got_by_others(self):
        model = torch.nn.Linear(10, 20)
        first = shared_torch.put_state_dict("model", model.state_dict(), self.broker)
        state = shared_torch.get_state_dict("model", self.other)
        self.assertTrue(torch.equal(state["weight"], model.weight) and torch.equal(state["bias"], model.bias))
        again = torch.nn.Linear(10, 20)
        again.load_state_dict(state)
        self.assertEqual((state.version, state.metadata, state.is_current), (first, b"", True))
        self.assertGreater(shared_torch.put_state_dict("model", again.state_dict(), self.broker, replace=True), first)
        self.assertFalse(state.is_current)
        copied = pickle.loads(pickle.dumps(state))
        self.assertTrue(type(copied) is dict and torch.equal(copied["bias"], model.bias))
        self.broker.put("no model", b"x" * 100)
        with self.assertRaisesRegex(ValueError, "no state dict"):
            shared_torch.get_state_dict("no model", self.other)

    def test_state_dict_when_its_tensors_are_dense_then_their_strides_stay(self):
        base = torch.arange(120.0)
        state = {
            "transposed": base.view(10, 12).t(), "channels last": base.view(1, 4, 5, 6).to(memory_format=torch.channels_last),
            "permuted": base.view(2, 3, 20).permute(2, 0, 1), "scalar": torch.tensor(7, dtype=torch.int16), "empty": torch.empty(0, 3),
            "bool": torch.tensor([True, False, True]), "bfloat16": base.to(torch.bfloat16), "conjugate": torch.tensor([1 + 2j]).conj(),
        }  # fmt: skip
        # What has gaps, or the same bytes twice, becomes contiguous.
        with_gaps = {"column": base.view(10, 12)[:, 3], "expanded": torch.ones(1).expand(4, 5)}
        packed = shared_torch.pack({**state, **with_gaps}, self.broker)
        shared_torch.put_state_dict("strides", {**state, **with_gaps}, self.broker)
        for found in (shared_torch.open_state_dict(packed.handle, self.other), shared_torch.get_state_dict("strides", self.other)):
            for name, tensor in {**state, **with_gaps}.items():
                self.assertTrue(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype, name)
                if name in state:
                    self.assertEqual(found[name].stride(), tensor.stride(), name)
                else:
                    self.assertTrue(found[name].is_contiguous(), name)

    def test_state_dict_when_weights_are_tied_then_they_stay_tied(self):
        weight = torch.nn.Parameter(torch.arange(12.0).view(3, 4))
        state = {"embedding": weight, "head": weight, "transposed": weight.t(), "row": weight[1], "copy": weight.clone()}
        packed = shared_torch.pack(state, self.broker)
        found = shared_torch.open_state_dict(packed.handle, self.other)
        pointers = {name: tensor.data_ptr() for name, tensor in found.items()}
        self.assertEqual(pointers["embedding"], pointers["head"])
        self.assertEqual(pointers["embedding"], pointers["transposed"])
        self.assertEqual(len(set(pointers.values())), 3)
        found["head"][0, 1] = 100
        self.assertEqual((found["transposed"][1, 0].item(), found["row"].tolist()), (100, [4, 5, 6, 7]))

    def test_state_dict_when_asked_read_only_then_arrays_that_refuse_to_be_written(self):
        state = {
            "weight": torch.arange(6.0).view(2, 3).t(),
            "half": torch.ones(3, dtype=torch.bfloat16),
            "none": torch.empty(0),
            "epoch": 3,
        }
        packed = shared_torch.pack(state, self.broker)
        shared_torch.put_state_dict("read only", state, self.broker)
        for found in (
            shared_torch.get_state_dict("read only", self.other, readonly=True),
            shared_torch.open_state_dict(packed.handle, self.other, readonly=True),
        ):
            weight = found["weight"]
            self.assertEqual((weight.tolist(), weight.strides, found["epoch"]), (state["weight"].tolist(), (4, 12), 3))
            self.assertEqual((found["half"].nbytes, found["none"].size), (6, 0))
            with self.assertRaisesRegex(ValueError, "read-only"):
                weight[0, 0] = 1

    def test_state_dict_when_its_tensors_have_no_single_place_then_says_what_to_do(self):
        for state, error, words in (
            ({"a": torch.ones(1), "b": torch.ones(1, device="meta")}, fdbroker.InvalidArgument, "no memory"),
            ({"a": torch.ones(3).to_sparse()}, fdbroker.InvalidArgument, "no memory"),
        ):
            with self.assertRaisesRegex(error, words):
                shared_torch.put_state_dict("nowhere", state, self.broker)
        with self.assertRaisesRegex(fdbroker.NotSupported, "device='cpu'"):
            shared_torch.put_state_dict("nowhere", {"a": torch.ones(1)}, self.broker, device="level-zero:0")
        self.assertIsNone(self.other.stat("nowhere"))

    def test_state_dict_when_put_then_options_and_metadata_go_along(self):
        shared_torch.put_state_dict("kept", {"a": torch.ones(1)}, self.broker, keep=60, metadata=b"step 7")
        self.assertTrue(self.other.stat("kept").kept)
        self.assertEqual(self.other.get("kept").metadata, b"step 7")
        with self.assertRaises(fdbroker.Exists):
            shared_torch.put_state_dict("kept", {"a": torch.ones(1)}, self.broker)

    def test_ref_when_pickled_then_the_same_bytes_and_the_tensor_itself_is_copied(self):
        import copy
        import io

        tensor = shared_torch.empty((3, 1 << 16), broker=self.broker).fill_(1)
        data = pickle.dumps(shared_torch.ref(tensor.t(), self.broker))
        self.assertLess(len(data), 2000)
        same = pickle.loads(data)
        self.assertEqual((same.shape, same.stride()), (tensor.t().shape, tensor.t().stride()))
        same.mul_(2)
        self.assertTrue((tensor == 2).all())
        # Good after its maker has let go of it.
        del tensor
        gc.collect()
        self.assertTrue((pickle.loads(data) == 2).all())
        for copied in (copy.deepcopy(same), pickle.loads(pickle.dumps(same))):
            self.assertNotEqual(copied.data_ptr(), same.data_ptr())
        file = io.BytesIO()
        torch.save(same, file)
        self.assertGreater(len(file.getvalue()), same.numel() * 4)
        with self.assertRaises(fdbroker.NotSupported):
            pickle.dumps(shared_torch.ref(torch.ones(3), self.broker))

    def test_dtypes_when_of_pytorch_then_memory_takes_them(self):
        names = "float32 float16 bfloat16 int8 bool complex64 float8_e4m3fn float8_e5m2 uint16 complex32".split()
        for dtype in [getattr(torch, name) for name in names if hasattr(torch, name)]:
            with self.subTest(dtype=dtype):
                made = self.broker.empty(4, dtype)
                self.assertEqual(made.nbytes, 4 * torch.empty(0, dtype=dtype).element_size())

    def test_default_broker_when_threads_ask_first_then_one_for_all_and_another_in_a_child(self):
        os.environ["FDBROKER_SOCKET"] = self.broker.socket
        self.addCleanup(os.environ.pop, "FDBROKER_SOCKET")
        start, found = threading.Barrier(8), []

        def ask():
            start.wait()
            found.append(shared_torch.default_broker())

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len({id(broker) for broker in found}), 1)
        self.assertEqual(in_child(lambda: shared_torch.default_broker() is not found[0] and shared_torch.underway() == 0), 0)
        found[0].close()
        again = shared_torch.default_broker()
        self.assertTrue(again is not found[0] and again.connected)
        again.close()

    def test_install_when_tensors_are_sent_then_they_arrive_after_their_sender_dropped_them(self):
        os.environ["FDBROKER_SOCKET"] = self.broker.socket
        self.addCleanup(os.environ.pop, "FDBROKER_SOCKET")
        context = torch.multiprocessing.get_context("spawn")
        queue, go = context.Queue(), context.Event()
        process = context.Process(target=sender, args=(queue, go))
        process.start()
        before = len(os.listdir("/proc/self/fd"))
        kept = [queue.get(timeout=120) for _ in range(40)]
        self.assertEqual([tensor[0, 0].item() for tensor in kept], [float(number) for number in range(40)])
        self.assertEqual(queue.get(timeout=120).__class__, torch.nn.Parameter)
        # The connection has a few, the tensors have none.
        self.assertLess(len(os.listdir("/proc/self/fd")) - before, 20)
        go.set()
        process.join()
        self.assertEqual(process.exitcode, 0)
        self.assertEqual(kept[39].sum().item(), 39000)
        shared_torch.default_broker().close()

    def test_install_when_a_message_is_read_then_the_sender_keeps_nothing(self):
        from multiprocessing.reduction import ForkingPickler

        os.environ["FDBROKER_SOCKET"] = self.broker.socket
        self.addCleanup(os.environ.pop, "FDBROKER_SOCKET")
        self.addCleanup(shared_torch.default_broker().close)
        shared_torch.install()
        self.addCleanup(shared_torch.uninstall)
        before, tensor = shared_torch.underway(), torch.ones(50)
        message = bytes(ForkingPickler.dumps(tensor))
        self.assertEqual(shared_torch.underway(), before + 1)
        same = ForkingPickler.loads(message)
        same.add_(1)
        self.assertEqual(tensor.sum().item(), 100, "a CPU tensor's memory becomes shared memory")
        self.assertEqual(shared_torch.underway(), before)


#: PyTorch without CUDA, and the stand-in's device memory, which is the CPU's: what the driver is asked for is real, the device of the
#: tensors is not.
ON_THE_STAND_IN = """
import torch, fdbroker._dlpack, fdbroker.torch
from types import SimpleNamespace
fdbroker._dlpack.CUDA = fdbroker._dlpack.CPU
enter()
torch.cuda.current_stream = lambda device: SimpleNamespace(cuda_stream=0, synchronize=lambda: call("cuStreamSynchronize", None))
"""


@needs_torch
class OnTheStandIn(StandInCase):
    def test_state_dict_when_put_on_a_gpu_then_one_allocation_there_under_one_name(self):
        self.run_script(ON_THE_STAND_IN + """
state = {"weight": torch.arange(600.0).view(20, 30).t(), "bias": torch.ones(5, dtype=torch.bfloat16), "epoch": 7}
with fdbroker.private_broker() as broker, fdbroker.connect(broker.socket) as other:
    versions = [fdbroker.torch.put_state_dict("model", state, broker, device="cuda:1", replace=True, keep=60) for _ in range(3)]
    assert versions == sorted(set(versions)), versions
    assert broker.stat("model").kind == "cuda-vmm"
    got = other.get("model")
    assert (got.device, got.version) == ("cuda:1", versions[-1])
    pointer, nbytes = got.pointer, got.nbytes
    got.close()
    found = fdbroker.torch.get_state_dict("model", other, readonly=True)
    for name in ("weight", "bias"):
        assert torch.equal(found[name], state[name]) and found[name].stride() == state[name].stride(), name
    assert found["epoch"] == 7 and list(found) == list(state)
    assert 0 < found["bias"].data_ptr() - found["weight"].data_ptr() < nbytes
    # Mapped for reading: a child that writes is ended by it.
    child = os.fork()
    if child == 0:
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        found["weight"][0, 0] = 1
        os._exit(0)
    import signal
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV
    broker.delete("model")
    assert torch.equal(found["weight"], state["weight"])
    packed = fdbroker.torch.pack(state, broker, device="cuda:0")
    assert packed.device == "cuda:0"
    opened = fdbroker.torch.open_state_dict(packed.handle, other)
    opened["weight"][0, 0] = -1
    again = fdbroker.torch.open_state_dict(packed.handle, other, readonly=True)
    assert again["weight"][0, 0] == -1 and torch.equal(again["bias"], state["bias"])
    del found, opened, again
    gc.collect()
    assert fdbroker._dlpack.lent() == 0
print("end")
""", FDBROKER_CUDA_STUB_DEVICES="2")  # fmt: skip

    def test_script_of_the_gpu_tests_when_run_small_then_all_its_checks_pass(self):
        root = os.environ.get("FDBROKER_TEST_DOCUMENTS")
        if root is None:
            self.skipTest("FDBROKER_TEST_DOCUMENTS is not set; the second run of test.sh sets it")
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if hard < 2048:
            self.skipTest(f"needs a hard limit of 2048 fds; it is {hard} (ulimit -Hn)")
        script = os.path.join(root, "tests/gpu/states.py")
        options = "--stand-in --no-namespaces --gib 0.004 --tensors 4 --readers 1 --updates 2 --direct-updates 1 --seconds 50"
        self.run_script(f"""
import subprocess
done = subprocess.run([sys.executable, {script!r}, *{options!r}.split()], stdout=subprocess.PIPE, text=True)
last = done.stdout.splitlines()[-1]
print("end" if (done.returncode, last) == (0, "15 passed, 0 failed") else done.stdout)
""")


@needs_cuda
class Cuda(BrokerCase):
    def test_memory_when_made_on_the_gpu_then_a_tensor_on_the_right_device(self):
        made = self.broker.empty((16, 16), "float32", device="cuda:0")
        tensor = torch.from_dlpack(made)
        self.assertEqual((str(tensor.device), tensor.data_ptr()), ("cuda:0", made.pointer))
        tensor.fill_(3)
        torch.cuda.synchronize()
        opened = self.other.open(made.handle, (16, 16), "float32", writable=True)
        by_interface = torch.as_tensor(opened, device="cuda:0")
        self.assertEqual(by_interface.data_ptr(), opened.pointer)
        self.assertEqual(by_interface.sum().item(), 768)
        self.assertEqual(torch.from_dlpack(opened).sum().item(), 768)

    def test_tensor_when_of_the_pool_then_shared_with_another_process(self):
        consumer = Reader(self)
        # The pool is the process's: a connection that stays.
        broker = fdbroker.connect(self.broker.socket)
        with torch.cuda.use_mem_pool(shared_torch.pool(broker)):
            tensors = [torch.full((1000, 1000), float(number), device="cuda") for number in range(10)]
        for number, tensor in enumerate(tensors):
            shared = shared_torch.share(tensor, broker)
            self.assertEqual(consumer.ask(shared), ("cuda:0", number * 1e6))
            self.assertEqual(tensor[0, 0].item(), number * 2)

    def test_tensor_when_of_cuda_malloc_then_not_supported_and_says_what_to_do(self):
        tensor = torch.ones(1 << 22, device="cuda")
        if "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
            return
        with self.assertRaisesRegex(fdbroker.NotSupported, "expandable_segments"):
            shared_torch.share(tensor, self.broker)

    def test_tensor_when_in_an_expandable_segment_then_shared(self):
        if "expandable_segments:True" not in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
            self.skipTest("needs PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; test_torch.py is run with it, too")
        consumer = Reader(self)
        tensor = torch.ones(1 << 18, device="cuda")
        self.assertEqual(consumer.ask(shared_torch.share(tensor, self.broker)), ("cuda:0", float(1 << 18)))
        self.assertEqual(tensor[0].item(), 2)

    def test_state_dict_when_on_the_gpu_then_opened_there(self):
        model = torch.nn.Linear(100, 100).cuda()
        packed = shared_torch.pack(model.state_dict(), self.broker)
        self.assertEqual(packed.device, "cuda:0")
        state = shared_torch.open_state_dict(packed.handle, self.other)
        self.assertTrue(state["weight"].is_cuda and torch.equal(state["weight"], model.weight))

    def test_state_dict_when_put_from_the_gpu_then_got_there_with_its_strides(self):
        weight = torch.randn(300, 200, device="cuda")
        state = {"weight": weight.t(), "head": weight, "half": weight[0].bfloat16(), "step": 3}
        version = shared_torch.put_state_dict("on the gpu", state, self.broker)
        self.assertEqual((self.broker.stat("on the gpu").kind, self.broker.stat("on the gpu").version), ("cuda-vmm", version))
        with self.other.get("on the gpu") as got:
            self.assertEqual((got.device, got.__dlpack_device__()), ("cuda:0", (2, 0)))
        found = shared_torch.get_state_dict("on the gpu", self.other)
        weight.zero_()
        self.assertEqual((found["weight"].stride(), found["step"], str(found["half"].device)), ((1, 200), 3, "cuda:0"))
        self.assertTrue(torch.equal(found["weight"], found["head"].t()) and found["head"].abs().sum().item() > 0)
        self.assertTrue(torch.equal(found["half"], found["head"][0].bfloat16()))
        self.assertEqual(found["weight"].data_ptr(), found["head"].data_ptr())

    def test_state_dict_when_its_tensors_are_on_two_devices_then_says_what_to_do(self):
        state = {"a": torch.ones(3), "b": torch.ones(3, device="cuda")}
        with self.assertRaisesRegex(fdbroker.InvalidArgument, "device='cuda:0'"):
            shared_torch.put_state_dict("mixed", state, self.broker)
        shared_torch.put_state_dict("mixed", state, self.broker, device="cuda:0")
        found = shared_torch.get_state_dict("mixed", self.other)
        self.assertTrue(found["a"].is_cuda and torch.equal(found["a"], found["b"]))


if __name__ == "__main__":
    unittest.main()
