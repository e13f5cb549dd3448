"""Pickles of memory are references: small, the same bytes, good after their maker has ended."""

import concurrent.futures
import copy
import gc
import io
import multiprocessing
import pickle
import subprocess
import sys
import textwrap
import time
import unittest

import fdbroker
from support import SOON_S, BrokerCase, needs_numpy, numpy, script

SPAWN = multiprocessing.get_context("spawn")


def make(socket, size):
    """In a worker: memory that is returned, and of which nothing else is left there."""
    return fdbroker.connect(socket).array(b"made by a worker".ljust(size, b"."))


def read(memory):
    return bytes(memory.memoryview()[:4]), memory.shape, memory.dtype, memory.writable


def put_and_read(queue, answers):
    answers.put(read(queue.get(timeout=SOON_S)))


class References(BrokerCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(fdbroker.set_transit)

    def test_buffer_when_pickled_then_small_and_the_same_bytes(self):
        made = self.broker.zeros((3, 1 << 18), "float32")
        data = pickle.dumps(made)
        self.assertLess(len(data), 1000)
        opened = pickle.loads(data)
        self.assertEqual((opened.shape, opened.dtype, opened.writable), (made.shape, made.dtype, True))
        opened.memoryview()[7] = 9
        self.assertEqual(made.memoryview()[7], 9)

    def test_reference_when_loaded_never_once_and_five_times_then_each_is_right(self):
        # This process waits for a reader of the first, when it ends.
        fdbroker.set_transit(1.0)
        made = self.broker.array(b"five")
        for count in (0, 1, 5):
            data = pickle.dumps(made)
            self.assertEqual([bytes(pickle.loads(data).memoryview()[:4]) for _ in range(count)], [b"five"] * count)

    def test_memory_when_opened_with_its_shape_then_it_has_those_bytes_alone(self):
        for content in (b"kept", b"", b"x" * 5000):
            made = self.broker.array(content)
            for opened in (pickle.loads(pickle.dumps(made)), self.broker.open(made.handle, made.shape, made.dtype)):
                self.assertEqual((opened.nbytes, bytes(opened.memoryview())), (len(content), content))
        self.assertEqual(self.broker.open(made.handle).nbytes, 8192)

    def test_reference_when_its_maker_lets_go_then_it_is_good_for_the_time_of_transit(self):
        fdbroker.set_transit(1.0)
        data = pickle.dumps(self.broker.array(b"kept"))
        gc.collect()
        self.broker.flush()
        self.assertEqual(bytes(pickle.loads(data).memoryview()[:4]), b"kept")
        self.eventually(lambda: self.broker.stats()["host_bytes_used"] <= 4096)
        self.broker.flush()
        with self.assertRaises(fdbroker.Stale):
            pickle.loads(data)

    def test_reference_when_more_than_the_bytes_are_pickled_then_the_oldest_goes(self):
        fdbroker.set_transit(SOON_S, 3 << 20)
        data = [pickle.dumps(self.broker.zeros(1 << 20)) for _ in range(4)]
        gc.collect()
        self.broker.flush()
        with self.assertRaises(fdbroker.Stale):
            pickle.loads(data[0])
        for one in data[1:]:
            pickle.loads(one)

    def test_workers_when_each_ends_after_its_task_then_what_they_return_is_there(self):
        with SPAWN.Pool(1, maxtasksperchild=1) as pool:
            got = pool.starmap(make, [(self.broker.socket, size) for size in (16, 5000)], chunksize=1)
        self.assertEqual([bytes(one.memoryview()[:16]) for one in got], [b"made by a worker"] * 2)

    def test_executor_when_given_memory_then_its_worker_reads_it(self):
        made = self.broker.array(b"exec")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
            self.assertEqual(pool.submit(read, made).result(SOON_S), (b"exec", (4,), "uint8", True))
            opened = self.other.open(made.handle, 4)
            self.assertEqual(pool.submit(read, opened).result(SOON_S), (b"exec", (4,), "uint8", False))

    def test_queue_when_its_sender_lets_go_at_once_then_read(self):
        queue, answers = SPAWN.Queue(), SPAWN.Queue()
        process = SPAWN.Process(target=put_and_read, args=(queue, answers))
        process.start()
        queue.put(self.broker.array(b"sent"))
        gc.collect()
        self.assertEqual(answers.get(timeout=SOON_S)[0], b"sent")
        process.join()

    def test_object_when_pickled_then_by_its_name_and_version(self):
        self.broker.put("o", b"first", metadata=b"about")
        data = pickle.dumps(self.other.get("o"))
        got = pickle.loads(data)
        self.assertEqual((bytes(got.memoryview()), got.metadata), (b"first", b"about"))
        self.broker.put("o", b"second", replace=True)
        with self.assertRaisesRegex(fdbroker.Stale, "version"):
            pickle.loads(data)

    def test_process_when_it_ends_with_one_in_transit_then_it_waits_for_its_reader(self):
        code = """
            import fdbroker, pickle, sys
            broker = fdbroker.connect(sys.argv[1])
            fdbroker.set_transit(float(sys.argv[2]))
            with open(sys.argv[3], "wb") as file:
                pickle.dump(broker.array(b"left"), file)
            """
        import os
        import tempfile
        import threading

        with tempfile.TemporaryDirectory() as folder:
            path, ends = os.path.join(folder, "reference"), []
            owner = threading.Thread(target=lambda: ends.append(script(code, self.broker.socket, 50, path)))
            owner.start()
            self.eventually(lambda: os.path.exists(path) and os.path.getsize(path) > 0)
            time.sleep(0.3)
            self.assertEqual(ends, [])
            with open(path, "rb") as file:
                self.assertEqual(bytes(pickle.load(file).memoryview()[:4]), b"left")
            owner.join(SOON_S)
            self.assertEqual(ends, [(0, "", "")])
            began = time.monotonic()
            self.assertEqual(script(code, self.broker.socket, 0.2, path)[0], 0)
            self.assertLess(time.monotonic() - began, 20)

    def test_reference_when_loaded_after_its_time_then_no_other_counts_as_loaded(self):
        code = """
            import fdbroker, pickle, sys, time
            broker = fdbroker.connect(sys.argv[1])
            fdbroker.set_transit(0.1)
            first = broker.array(b"first")
            late = pickle.dumps(first)
            time.sleep(0.5)
            fdbroker.set_transit(50)
            second = broker.array(b"second")
            print(late.hex(), pickle.dumps(second).hex(), flush=True)
            sys.stdin.readline()
            del second
            """
        owner = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), self.broker.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(owner.wait)
        self.addCleanup(owner.kill)
        late, second = (bytes.fromhex(one) for one in owner.stdout.readline().split())
        self.assertEqual(bytes(pickle.loads(late).memoryview()[:5]), b"first")
        owner.stdin.write("end\n")
        owner.stdin.flush()
        with self.assertRaises(subprocess.TimeoutExpired):
            owner.wait(1)
        self.assertEqual(bytes(pickle.loads(second).memoryview()[:6]), b"second")
        self.assertEqual(owner.wait(SOON_S), 0)

    def test_copies_when_asked_for_then_refused_with_a_remedy(self):
        made = self.broker.array(b"x")
        for act in (copy.copy, copy.deepcopy):
            with self.assertRaisesRegex(TypeError, r"broker.array\(memory\)"):
                act(made)
        self.assertEqual(bytes(self.broker.array(made.memoryview()).memoryview()), b"x")
        made.close()
        with self.assertRaises(fdbroker.Closed):
            pickle.dumps(made)
        with self.broker.create({"g": (1, "uint8")}) as group, self.assertRaisesRegex(TypeError, "no reference"):
            pickle.dumps(group["g"])

    @needs_numpy
    def test_array_when_saved_or_pickled_then_its_bytes_are(self):
        made = self.broker.zeros(1 << 16)
        array = made.numpy()
        self.assertGreater(len(pickle.dumps(array)), 1 << 16)
        file = io.BytesIO()
        numpy.save(file, array)
        self.assertGreater(len(file.getvalue()), 1 << 16)
        self.assertFalse(numpy.shares_memory(copy.deepcopy(array), array))


if __name__ == "__main__":
    unittest.main()
