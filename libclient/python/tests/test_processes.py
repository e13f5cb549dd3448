"""Threads, forked children, other processes, asyncio, the end of the interpreter; and that nothing is left behind."""

import asyncio
import concurrent.futures
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import fdbroker
from support import SOON_S, BrokerCase, in_child, mappings, open_fds, script


def consume(socket, handle, answers):
    """In a process of its own."""
    with fdbroker.connect(socket) as broker:
        answers.put(bytes(broker.open(handle).memoryview()[:5]))


class Left(unittest.TestCase):
    def test_private_broker_when_owners_were_killed_then_the_next_removes_what_is_left_and_nothing_else(self):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "TMPDIR": folder}
            code = "import fdbroker, sys; b = fdbroker.private_broker(); print(b.pid, b._folder, flush=True); sys.stdin.read()"

            def owner():
                child = subprocess.Popen(
                    [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
                )
                self.addCleanup(child.wait)
                self.addCleanup(child.kill)
                self.addCleanup(child.stdin.close)
                self.addCleanup(child.stdout.close)
                pid, place = child.stdout.readline().split()
                return child, int(pid), place

            (dead, its_broker, left), (_, alone, without_broker), (_, _, alive) = owner(), owner(), owner()
            os.kill(alone, signal.SIGKILL)
            os.kill(its_broker, signal.SIGKILL)
            dead.kill()
            dead.wait()
            until = time.monotonic() + SOON_S
            # The kernel may take a moment to end what was killed.
            while os.path.exists(left) and time.monotonic() < until:
                last, _, _ = owner()
                last.stdin.close()
                last.wait()
            self.assertEqual([os.path.exists(path) for path in (left, without_broker, alive)], [False, True, True])


class Threads(BrokerCase):
    def test_threads_when_they_make_and_open_at_once_then_each_finds_its_bytes(self):
        def work():
            for turn in range(40):
                text = b"%d-%d" % (threading.get_ident(), turn)
                with self.broker.array(text) as made, self.other.open(made.handle) as opened:
                    self.assertEqual(bytes(opened.memoryview()[: len(text)]), text)

        in_threads(*[work] * 8)
        self.assertEqual(self.other.stats()["pinned"], 0)

    def test_close_when_threads_still_call_then_closed_and_no_crash(self):
        made = self.broker.zeros(1)
        for _ in range(10):
            other = fdbroker.connect(self.broker.socket)

            def work():
                with self.assertRaises(fdbroker.Closed):
                    while True:
                        other.open(made.handle).close()

            in_threads(work, work, work, work, other.close)

    def test_close_when_many_threads_close_the_same_memory_then_once(self):
        for _ in range(20):
            made = self.broker.zeros(1)
            in_threads(*[made.close] * 4)
        del made
        gc.collect()
        self.assertEqual(self.broker.stats()["registrations"], 0)

    def test_connect_when_the_broker_is_stopped_then_it_ends_at_its_timeout_and_says_so(self):
        os.kill(self.broker.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with self.assertRaisesRegex(fdbroker.NotConnected, "does not answer.*it is stopped"):
                fdbroker.connect(self.broker.socket, timeout=0.2)
            # Ten times that: far less than the 10 s of a connect without one.
            self.assertLess(time.monotonic() - began, 2.0)
        finally:
            os.kill(self.broker.pid, signal.SIGCONT)
        with fdbroker.connect(self.broker.socket, timeout=30) as later:
            self.assertTrue(later.connected)
        with self.assertRaises(ValueError):
            fdbroker.connect(self.broker.socket, timeout=-1)

    @unittest.skipIf(os.geteuid() != 0, "needs root, for another user")
    def test_connect_when_another_user_serves_then_not_permitted_and_nothing_is_sent(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o1777)
            path = os.path.join(folder, "broker.sock")
            # A server of a uid that no machine uses: it tells what its one client has sent.
            script = """
import os, socket, sys
os.setgroups([]); os.setresgid(61003, 61003, 61003); os.setresuid(61003, 61003, 61003)
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1]); listener.listen()
print("ready", flush=True)
print(len(listener.accept()[0].recv(4096)), flush=True)
"""
            command = [sys.executable, "-c", script, path]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
                self.assertEqual(server.stdout.readline(), "ready\n")
                with self.assertRaises(fdbroker.NotPermitted) as caught:
                    fdbroker.connect(path)
                for part in ("served by uid 61003", path, "FDBROKER_SOCKET"):
                    self.assertIn(part, str(caught.exception))
                self.assertEqual(server.stdout.readline(), "0\n")

    def test_private_broker_when_many_threads_close_it_then_no_other_fd_is_closed(self):
        for _ in range(5):
            private = fdbroker.private_broker()
            start = threading.Barrier(8)

            def work():
                start.wait()
                private.close()
                # The number of the broker's pipe is free now, and given to this one.
                return os.open("/dev/null", os.O_RDONLY)

            opened = in_threads(*[work] * 8)
            # A number that was closed a second time was given twice, or is no fd any more.
            self.assertEqual(len(set(opened)), 8)
            for fd in opened:
                os.close(fd)

    def test_connected_when_others_close_then_false_and_no_crash(self):
        for _ in range(20):
            other = fdbroker.connect(self.broker.socket)
            start = threading.Barrier(4)

            def ask():
                start.wait()
                while other.connected:
                    pass

            def close():
                start.wait()
                other.close()

            in_threads(ask, ask, ask, close)

    def test_group_when_one_thread_seals_and_one_closes_then_whole_or_not_there(self):
        data = bytes(range(256)) * 16
        for turn in range(40):
            name = f"group/{turn}"
            group, start = self.broker.create({name: (len(data), "uint8")}), threading.Barrier(2)

            def seal():
                start.wait()
                try:
                    group.write(name, data)
                    return group.seal()
                except fdbroker.Sealed:
                    return None

            def close():
                start.wait()
                group.close()

            version = in_threads(seal, close)[0]
            if version is None:
                self.assertIsNone(self.other.stat(name))
            else:
                self.assertEqual(bytes(self.other.get(name).memoryview()[: len(data)]), data)

    def test_objects_when_threads_put_and_get_then_each_finds_its_own(self):
        def work():
            mine = f"of/{threading.get_ident()}"
            for turn in range(20):
                text = b"%d" % turn
                version = self.broker.put(mine, text, replace=True)
                with self.other.get(mine) as got:
                    self.assertEqual((got.version, bytes(got.memoryview()[: len(text)])), (version, text))
                    capsule = got.__dlpack__(max_version=(1, 0))
                # The last that keeps the object.
                del capsule

        in_threads(*[work] * 8)


def in_threads(*works):
    """Runs each in a thread of its own: what they return. What one raises is raised here."""
    with concurrent.futures.ThreadPoolExecutor(len(works)) as pool:
        return [done.result() for done in [pool.submit(work) for work in works]]


class Forks(BrokerCase):
    def test_child_when_forked_then_not_connected_and_the_parent_goes_on(self):
        made = self.broker.array(b"parent")
        opened = self.other.open(made.handle)
        view = made.memoryview()

        def act():
            for call in (lambda: self.broker.empty(1), lambda: self.other.open(made.handle), opened.memoryview, self.broker.stats):
                try:
                    call()
                except fdbroker.NotConnected:
                    continue
                return call
            # What this process made before the fork is still seen, and what the child closes stays the parent's.
            if bytes(view) != b"parent":
                return "view"
            made.close()
            opened.close()
            self.broker.close()
            self.other.close()
            gc.collect()
            with fdbroker.connect(self.broker.socket) as anew:
                return bytes(anew.open(handle).memoryview()[:6]) == b"parent"

        handle = made.handle
        self.assertEqual(in_child(act), 0)
        self.assertEqual(bytes(self.other.open(made.handle).memoryview()[:6]), b"parent")
        self.assertTrue(opened.is_current)
        self.assertEqual(self.broker.stats()["registrations"], 1)

    def test_child_when_it_exits_normally_then_the_parents_broker_lives(self):
        child = os.fork()
        if child == 0:
            os.execv(sys.executable, [sys.executable, "-c", "pass"])
        os.waitpid(child, 0)
        context = multiprocessing.get_context("fork")
        process = context.Process(target=gc.collect)
        process.start()
        process.join()
        self.assertEqual(process.exitcode, 0)
        self.broker.empty(1)

    def test_process_when_spawned_then_it_opens_by_the_handle(self):
        context = multiprocessing.get_context("spawn")
        answers = context.Queue()
        made = self.broker.array(b"spawn")
        process = context.Process(target=consume, args=(self.broker.socket, made.handle, answers))
        process.start()
        self.assertEqual(answers.get(timeout=60), b"spawn")
        process.join()
        self.assertEqual(process.exitcode, 0)

    def test_owner_when_killed_then_its_memory_is_gone_and_views_stay(self):
        status, out, _ = script(
            """
            import fdbroker, os, sys
            broker = fdbroker.connect(sys.argv[1])
            made = broker.array(b"killed")
            print(made.handle.hex(), flush=True)
            os.kill(os.getpid(), 9)
            """,
            self.broker.socket,
        )
        self.assertEqual(status, -signal.SIGKILL)
        self.eventually(lambda: self.ledger("connections") == 2)
        with self.assertRaises((fdbroker.OwnerGone, fdbroker.Stale)):
            self.other.open(bytes.fromhex(out.strip()))


class Exit(BrokerCase):
    def test_exit_when_everything_is_still_open_then_clean(self):
        status, out, err = script(
            """
            import fdbroker, sys
            broker = fdbroker.connect(sys.argv[1])
            private = fdbroker.private_broker()
            made = broker.array(b"global")
            opened = broker.open(made.handle, writable=True)
            view = opened.memoryview()
            capsule = opened.__dlpack__()
            cycle = [opened, view]; cycle.append(cycle)
            print("end")
            """,
            self.broker.socket,
        )
        self.assertEqual((status, out, err), (0, "end\n", ""))
        self.eventually(lambda: self.ledger("connections") == 2)

    def test_exit_when_by_a_signal_or_an_error_then_the_private_broker_ends(self):
        for end in ("os.kill(os.getpid(), 9)", "raise SystemExit(3)", "1 / 0"):
            _, out, _ = script(f"import fdbroker, os; b = fdbroker.private_broker(); print(b.pid, flush=True); {end}")
            pid = int(out)
            self.eventually(lambda: not is_alive(pid))

    def test_exit_when_a_thread_still_waits_then_no_hang(self):
        status, _, err = script(
            """
            import fdbroker, sys, threading, time
            broker = fdbroker.connect(sys.argv[1])
            handle = broker.array(b"x").handle
            def work():
                while True:
                    with broker.array(b"y") as made: broker.open(made.handle).close()
            threading.Thread(target=work, daemon=True).start()
            time.sleep(0.2)
            """,
            self.broker.socket,
        )
        self.assertEqual((status, err), (0, ""))


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Asyncio(BrokerCase):
    def test_aopen_when_awaited_then_other_tasks_go_on(self):
        made = self.broker.array(b"async")

        async def main():
            opened = await asyncio.gather(*(self.other.aopen(made.handle) for _ in range(10)))
            kept = await self.broker.aempty((2, 2), "float32")
            return [bytes(one.memoryview()[:5]) for one in opened], kept.shape

        self.assertEqual(asyncio.run(main()), ([b"async"] * 10, (2, 2)))

    def test_aopen_when_it_fails_then_the_tasks_exception(self):
        async def main():
            await self.other.aopen(bytes(64))

        with self.assertRaises(fdbroker.BadHandle):
            asyncio.run(main())

    def test_aopen_when_cancelled_then_nothing_is_left(self):
        made = self.broker.array(b"late")
        handle = made.handle

        async def main():
            tasks = [asyncio.ensure_future(self.other.aopen(handle)) for _ in range(20)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # One whose answer was there already has opened it.
            return [task.exception() for task in tasks if not task.cancelled() and task.exception()]

        self.assertEqual(asyncio.run(main()), [])
        gc.collect()
        self.eventually(lambda: self.other.stats()["pinned"] == 0)


class Leaks(BrokerCase):
    def round(self):
        """Everything that a program does, once."""
        with fdbroker.connect(self.broker.socket) as broker:
            made = broker.zeros((10, 10), "float32")
            opened = self.other.open(made.handle, (10, 10), "float32", writable=True)
            view, capsule = opened.memoryview(), opened.__dlpack__()
            opened.close()
            del view, capsule
            for wrong in (bytes(64), b""):
                try:
                    self.other.open(wrong)
                except fdbroker.BadHandle:
                    pass
            kept = broker.array(b"left to the collector")
            cycle = [kept]
            cycle.append(cycle)

    def test_rounds_when_repeated_then_fds_maps_references_and_leases_are_as_before(self):
        from fdbroker import _dlpack

        for _ in range(3):
            self.round()
        gc.collect()
        before = open_fds(), mappings(), len(gc.get_objects())
        for _ in range(30):
            self.round()
        gc.collect()
        self.other.empty_cache()
        after = open_fds(), mappings(), len(gc.get_objects())
        self.assertEqual(after[0], before[0])
        self.assertLessEqual(after[1], before[1])
        # Types of the interpreter's own caches come and go; 30 rounds of one lost object would be 30.
        self.assertLess(after[2] - before[2], 30)
        self.assertEqual(_dlpack.lent(), 0)
        self.eventually(lambda: self.ledger("mapped_leases") == 0 and self.ledger("open_leases") == 0)
        self.eventually(lambda: self.ledger("connections") == 2)

    def test_private_brokers_when_repeated_then_no_fd_and_no_process_is_left(self):
        fdbroker.private_broker().close()
        before, threads = open_fds(), len(os.listdir("/proc/self/task"))
        for _ in range(3):
            with fdbroker.private_broker() as broker:
                broker.empty(1)
        self.assertEqual(open_fds(), before)
        self.assertLessEqual(len(os.listdir("/proc/self/task")), threads)


class Numpyless(unittest.TestCase):
    def test_import_when_done_then_neither_numpy_nor_torch_is_imported(self):
        status, out, err = script(
            """
            import sys, fdbroker
            with fdbroker.private_broker() as broker:
                made = broker.zeros((2, 2), "float32")
                broker.open(made.handle).memoryview()
            print([name for name in ("numpy", "torch", "cupy") if name in sys.modules])
            """
        )
        self.assertEqual((status, out.strip(), err), (0, "[]", ""))


if __name__ == "__main__":
    unittest.main()
