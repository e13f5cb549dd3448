"""fdbroker.torch: tensors of the CPU everywhere where PyTorch is, and of CUDA where there is a GPU."""

import gc
import multiprocessing
import os
import unittest

import fdbroker
from support import BrokerCase

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
        self.assertGreater(shared_torch.put_state_dict("model", again.state_dict(), self.broker, replace=True), first)
        self.broker.put("no model", b"x" * 100)
        with self.assertRaisesRegex(ValueError, "no state dict"):
            shared_torch.get_state_dict("no model", self.other)

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
        packed = shared_torch.pack(model.state_dict(), self.broker, device="cuda:0")
        state = shared_torch.open_state_dict(packed.handle, self.other)
        self.assertTrue(state["weight"].is_cuda and torch.equal(state["weight"], model.weight))


if __name__ == "__main__":
    unittest.main()
