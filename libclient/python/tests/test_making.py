"""Objects made by asyncio: begun, filled, sealed and put while no thread waits for the broker."""

import asyncio
import contextlib
import gc
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
import unittest
import unittest.mock
import warnings

import fdbroker
from fdbroker import _native
from support import SOON_S, BrokerCase, needs_numpy, numpy, open_fds, script

#: Ten times what a cancel may take.
AT_ONCE_S = 0.1


class Making(BrokerCase):
    def test_group_when_created_filled_and_sealed_then_all_names_lead_to_it(self):
        async def main():
            group = await self.other.acreate({"g/a": (3, "uint8"), "g/b": ((2, 3), "float32")}, metadata={"g/a": b"own"})
            group["g/a"].memoryview()[:] = b"abc"
            with self.assertRaises(fdbroker.NotSealed):
                await self.broker.aget("g/a", timeout=0)
            version = await group.aseal()
            with self.assertRaises(fdbroker.Sealed):
                group["g/a"]
            with self.assertRaises(fdbroker.Sealed):
                await group.aseal()
            with self.assertRaises(fdbroker.Exists):
                await self.other.acreate({"g/b": (1, "uint8")})
            with self.assertRaises(ValueError):
                await self.other.acreate({"nul\0": (1, "uint8")})
            return version, await self.broker.aget("g/a"), await self.broker.aget("g/b")

        version, first, second = asyncio.run(main(), debug=True)
        self.assertEqual((first.version, second.version), (version, version))
        self.assertEqual((bytes(first.memoryview()), first.metadata, second.shape), (b"abc", b"own", (2, 3)))

    def test_seal_when_a_view_is_there_then_busy_and_sealed_later(self):
        async def main():
            with await self.other.acreate({"busy": (4, "uint8")}) as group:
                view = group["busy"].memoryview()
                with self.assertRaises(fdbroker.SealedBusy):
                    await group.aseal()
                view[:] = b"late"
                del view
                return await group.aseal()

        version = asyncio.run(main())
        self.assertEqual(self.broker.get("busy").version, version)

    def test_seal_when_refused_then_it_can_be_sealed_again(self):
        async def main():
            group = await self.other.acreate({"name": (1, "uint8")}, expect=0)
            await self.broker.aput("name", b"first", replace=True)
            with self.assertRaises(fdbroker.VersionChanged):
                await group.aseal()
            self.broker.delete("name")
            return await group.aseal()

        self.assertGreater(asyncio.run(main()), 0)

    @needs_numpy
    def test_put_when_awaited_then_as_put(self):
        values = {"f": numpy.arange(6.0).reshape(2, 3), "t": numpy.arange(6).reshape(2, 3).T, "s": numpy.float32(2.5)}

        async def main():
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                versions = [await self.broker.aput(name, value, metadata=b"m", keep=60) for name, value in values.items()]
            return versions, [one.category for one in said]

        versions, said = asyncio.run(main())
        self.assertEqual((len(set(versions)), said), (3, [fdbroker.KeptEndsWithBroker]))
        for name, value in values.items():
            got = self.other.get(name)
            self.assertEqual((got.shape, got.metadata), (value.shape, b"m"))
            self.assertTrue((got.numpy() == value).all())
            self.assertTrue(self.other.stat(name).kept)

    def test_put_when_of_bytes_or_nothing_then_as_put(self):
        source = self.broker.array(b"memory")
        values = {"bytes": b"bytes", "none": b"", "array": bytearray(b"array"), "view": memoryview(b"view"), "memory": source}

        async def main():
            return await asyncio.gather(*(self.other.aput(name, value) for name, value in values.items()))

        self.assertEqual(len(set(asyncio.run(main()))), len(values))
        for name, value in values.items():
            self.assertEqual(bytes(self.broker.get(name).memoryview()), bytes(value.memoryview()) if value is source else bytes(value))

    @needs_numpy
    def test_put_when_of_many_bytes_or_what_is_to_be_read_first_then_not_in_the_loop(self):
        most, here = 64 << 10, threading.get_ident()
        at_once = b"x" * most, bytearray(most), memoryview(b"x"), numpy.zeros(most, "u1"), self.broker.array(b"memory")
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x")
            file.flush()
            later = b"x" * (most + 1), numpy.zeros(most + 1, "u1"), numpy.memmap(file.name), [1, 2], 2.5
            source = fdbroker._objects._source

            async def copies_here(value):
                threads = []
                note = lambda value: threads.append(threading.get_ident()) or source(value)  # noqa: E731
                with unittest.mock.patch.object(fdbroker._objects, "_source", note):
                    await self.other.aput("copied", value, replace=True)
                return threads == [here]

            async def main():
                return [await copies_here(value) for value in at_once + later]

            self.assertEqual(asyncio.run(main()), [True] * len(at_once) + [False] * len(later))

    def test_puts_when_many_then_few_threads_and_all_are_there(self):
        async def main():
            before = threading.active_count()
            await asyncio.gather(*(self.other.aput(f"many/{n}", b"%d" % n, timeout=SOON_S) for n in range(200)))
            return threading.active_count() - before

        self.assertLessEqual(asyncio.run(main(), debug=True), 8)
        self.assertEqual([bytes(self.broker.get(f"many/{n}").memoryview()) for n in range(200)], [b"%d" % n for n in range(200)])

    def test_calls_when_a_thousand_are_cancelled_at_any_moment_then_nothing_is_left(self):
        chance = random.Random(39)

        async def make(name):
            group = await self.other.acreate({name: (5000, "uint8")}, replace=True, timeout=SOON_S)
            group.write(name, b"x" * 5000)
            await group.aseal(timeout=SOON_S)

        async def once(number):
            name = f"cancelled/{number % 20}"
            # Copied by the loop, or in a thread.
            data = b"x" * (5000 if number % 4 else 70000)
            call = make(name) if number % 2 else self.other.aput(name, data, replace=True, timeout=SOON_S)
            task = asyncio.ensure_future(call)
            await asyncio.sleep(chance.random() * 0.006)
            began = time.monotonic()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return time.monotonic() - began

        async def main():
            await self.other.aput("first", b"")
            gc.collect()
            before = open_fds()
            took = [await once(number) for number in range(1000)]
            return before, max(took)

        before, took = asyncio.run(main())
        self.assertLess(took, AT_ONCE_S)
        gc.collect()
        # What was sealed all the same.
        self.other.delete_prefix("cancelled/")
        self.other.delete("first")
        self.eventually(self.is_empty)
        self.assertLessEqual(open_fds(), before)

    def test_calls_when_the_broker_does_not_answer_then_their_times_and_cancels_are_their_own(self):
        async def main():
            group = await self.other.acreate({"stopped": (1, "uint8")})
            second = await self.other.acreate({"second": (1, "uint8")})
            os.kill(self.broker.pid, signal.SIGSTOP)
            try:
                tasks = [asyncio.ensure_future(call) for call in (
                    second.aseal(timeout=SOON_S), self.other.acreate({"c": (1, "uint8")}, timeout=SOON_S), self.other.aput("p", b"", timeout=SOON_S)
                )]  # fmt: skip
                for call in (group.aseal(timeout=0.3), self.other.acreate({"b": (1, "uint8")}, timeout=0), self.other.aput("q", b"", timeout=0.3)):
                    with self.assertRaises(fdbroker.TimedOut):
                        await asyncio.wait_for(call, SOON_S)
                began = time.monotonic()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self.assertLess(time.monotonic() - began, AT_ONCE_S)
            finally:
                os.kill(self.broker.pid, signal.SIGCONT)
            with self.assertRaises(fdbroker.Sealed):
                await second.aseal()

        asyncio.run(main())
        self.other.delete_prefix("s")
        self.eventually(self.is_empty)

    def test_broker_when_closed_with_starts_pending_then_they_end_and_it_goes(self):
        async def main():
            other = fdbroker.connect(self.broker.socket)
            await other.aput("first", b"")
            os.kill(self.broker.pid, signal.SIGSTOP)
            try:
                tasks = [asyncio.ensure_future(other.aput(f"p/{n}", b"", timeout=SOON_S)) for n in range(5)]
                tasks.append(asyncio.ensure_future(other.acreate({"c": (1, "uint8")}, timeout=SOON_S)))
                await asyncio.sleep(0.2)
                other.close()
                with self.assertRaises(fdbroker.Closed):
                    await other.aput("late", b"")
            finally:
                os.kill(self.broker.pid, signal.SIGCONT)
            return await asyncio.gather(*tasks)

        made = asyncio.run(main())
        self.assertEqual(len(set(made[:5])), 5)
        made.clear()
        gc.collect()
        # Its connection has ended, and with it what it had made.
        self.eventually(lambda: self.ledger("object_names") == 0)

    def test_loop_when_closed_with_starts_pending_then_no_word_and_the_next_works(self):
        status, out, err = script(
            """
            import asyncio, fdbroker, gc, os, signal, sys
            broker, pid = fdbroker.connect(sys.argv[1]), int(sys.argv[2])
            async def begin():
                group = await broker.acreate({"sealed": (1, "uint8")})
                os.kill(pid, signal.SIGSTOP)
                for number in range(40):
                    asyncio.get_running_loop().create_task(broker.aput(f"never/{number}", b"x", timeout=50))
                asyncio.get_running_loop().create_task(group.aseal(timeout=50))
                await asyncio.sleep(0.3)
            loop = asyncio.new_event_loop()
            loop.set_exception_handler(lambda *_: None)
            try:
                loop.run_until_complete(begin())
                loop.close()
                del loop
                gc.collect()
            finally:
                os.kill(pid, signal.SIGCONT)
            asyncio.run(broker.aput("here", b"x"))
            print(bytes(broker.get("here").memoryview()))
            """,
            self.broker.socket,
            self.broker.pid,
        )
        self.assertEqual((status, out), (0, "b'x'\n"), err)
        self.assertNotIn("Traceback", err)
        self.eventually(self.is_empty)

    def test_calls_when_the_broker_is_killed_in_the_middle_then_not_connected_and_the_next_serves(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
            path = os.path.join(folder, "fdbroker", "broker.sock")

            def start():
                process = running.enter_context(subprocess.Popen([_native.program_path("fdbrokerd"), "--private", folder, "--log", "error"]))
                running.callback(process.kill)
                self.eventually(lambda: can_connect(path))
                return process

            def can_connect(path):
                with contextlib.suppress(fdbroker.NotConnected):
                    fdbroker.connect(path, timeout=SOON_S).close()
                    return True

            async def main(first):
                broker = fdbroker.connect(path)
                group = await broker.acreate({"group": (1, "uint8")})
                first.send_signal(signal.SIGSTOP)
                calls = group.aseal(timeout=SOON_S), broker.acreate({"c": (1, "uint8")}, timeout=SOON_S), broker.aput("p", b"", timeout=SOON_S)
                tasks = [asyncio.ensure_future(call) for call in calls]
                await asyncio.sleep(0.2)
                first.kill()
                first.wait()
                start()
                for task in tasks:
                    with self.assertRaises((fdbroker.NotConnected, fdbroker.Aborted)):
                        await asyncio.wait_for(task, SOON_S)
                self.eventually(lambda: broker.connected)
                self.assertEqual([one.name for one in broker.list()], [])
                group = await broker.acreate({"group": (1, "uint8")})
                return await group.aseal(), await broker.aput("p", b"")

            self.assertEqual(len(set(asyncio.run(main(start())))), 2)


class MakingInLittleRoom(BrokerCase):
    options = {"max_fds": 64, "settings": {"limits.recall_timeout_ms": 600000}}

    def test_puts_when_many_replace_what_fills_the_cap_then_none_waits_for_another(self):
        async def main():
            for _ in range(3):
                await asyncio.gather(*(self.other.aput(f"n/{number % 30}", b"x", replace=True, timeout=SOON_S) for number in range(300)))

        asyncio.run(main())
        self.eventually(lambda: self.ledger("object_names") == 30)


class MakingAtCaps(BrokerCase):
    options = {"max_fds": 24, "settings": {"limits.recall_timeout_ms": 600000}}

    def fill(self):
        """Takes all that the cap allows."""
        full = []
        with contextlib.suppress(fdbroker.NoQuota):
            while True:
                full.append(self.broker.empty(4096, memory="isolated", timeout=0))
        return full

    def test_seal_when_empties_wait_for_room_then_it_does_not_wait_for_them(self):
        async def main():
            group = await self.other.acreate({"sealed": (1, "uint8")}, keep=60)
            full = self.fill()
            empties = [asyncio.ensure_future(self.other.aempty(1, memory="isolated", timeout=SOON_S)) for _ in range(4)]
            await asyncio.sleep(0.3)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                version = await group.aseal(timeout=SOON_S)
            self.assertFalse(any(task.done() for task in empties))
            full.clear()
            gc.collect()
            await asyncio.gather(*empties)
            return version

        self.assertGreater(asyncio.run(main()), 0)

    def test_loop_when_closed_with_calls_of_each_kind_pending_then_all_that_they_had_is_given_back(self):
        group, full, tasks = self.other.create({"sealed": (1, "uint8")}), self.fill(), []
        fds, loop = open_fds(), asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)

        async def begin():
            for n in range(4):
                calls = (
                    self.other.aget(f"never/{n}", timeout=SOON_S), self.other.aput(f"put/{n}", b"x", timeout=SOON_S),
                    self.other.aput(f"large/{n}", b"x" * 100000, timeout=SOON_S), self.other.acreate({f"c/{n}": (1, "uint8")}, timeout=SOON_S),
                    self.other.aempty(1, memory="isolated", timeout=SOON_S),
                )  # fmt: skip
                tasks.extend(map(asyncio.ensure_future, calls))
            await asyncio.sleep(0.3)
            os.kill(self.broker.pid, signal.SIGSTOP)
            tasks.append(asyncio.ensure_future(group.aseal(timeout=SOON_S)))
            await asyncio.sleep(0.1)

        try:
            loop.run_until_complete(begin())
            self.assertGreater(open_fds(), fds + 12)
            loop.close()
        finally:
            os.kill(self.broker.pid, signal.SIGCONT)
        # The program keeps its tasks.
        self.assertEqual([task for task in tasks if task.done()], [])
        full.clear()
        self.other.delete_prefix("sealed")
        self.eventually(self.is_empty)
        self.eventually(lambda: open_fds() <= fds)

    def test_creates_when_they_wait_for_room_then_threads_are_free_and_they_come_or_are_cancelled(self):
        full = self.fill()

        async def main():
            creates = [self.other.acreate({f"room/{n}": (1, "uint8")}, timeout=SOON_S) for n in range(20)]
            tasks = [asyncio.ensure_future(create) for create in creates]
            await asyncio.sleep(0.3)
            # In the threads for copies nothing waits.
            copied = [asyncio.ensure_future(fdbroker._aio.run(lambda _: 7, SOON_S)) for _ in range(8)]
            self.assertEqual(await asyncio.wait_for(asyncio.gather(*copied), SOON_S), [7] * 8)
            with self.assertRaisesRegex(fdbroker.NoQuota, "fds"):
                await self.other.acreate({"late": (1, "uint8")}, timeout=0.5)
            for task in tasks[2:]:
                task.cancel()
            full.clear()
            gc.collect()
            groups = await asyncio.gather(*tasks[:2])
            return [await group.aseal() for group in groups]

        self.assertEqual(len(set(asyncio.run(main()))), 2)
        self.eventually(lambda: self.ledger("parked_requests") == 0 and self.ledger("object_names") == 2)


if __name__ == "__main__":
    unittest.main()
