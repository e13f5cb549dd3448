"""Waits: stopped by a signal handler that raises, native to asyncio."""

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import unittest

import fdbroker
from fdbroker import _waits
from support import SOON_S, BrokerCase, open_fds, run_program, script

#: Ten times what a stop may take.
AT_ONCE_S = 0.1


class Stopped(Exception):
    """What the handler of these tests raises."""


def stop(*_):
    raise Stopped


class Signals(BrokerCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, stop))

    def signal_in(self, seconds, number=signal.SIGUSR1):
        """Sends this process a signal from another thread; when."""
        sent = []

        def send():
            time.sleep(seconds)
            sent.append(time.monotonic())
            os.kill(os.getpid(), number)

        thread = threading.Thread(target=send)
        thread.start()
        self.addCleanup(thread.join)
        return sent

    def alarms(self):
        """Has the handler of SIGALRM raise. Two lists: one item for each signal that came, and one for each exception that Python reported and
        dropped, as the collector began to give something back."""
        came, unraisable = [], []

        def handle(*_):
            came.append(None)
            raise Stopped

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, handle))
        self.addCleanup(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = lambda _: unraisable.append(None)
        return came, unraisable

    def assert_stopped(self, call, *arguments, **options):
        sent = self.signal_in(0.1)
        with self.assertRaises(Stopped):
            call(*arguments, **options)
        self.assertLess(time.monotonic() - sent[0], AT_ONCE_S)

    def test_get_when_a_handler_raises_then_stopped_at_once(self):
        for timeout in (50.0, None):
            self.assert_stopped(self.broker.get, "never", timeout=timeout)
        # The next call waits as ever.
        with self.assertRaises(fdbroker.TimedOut):
            self.broker.get("never", timeout=0.2)
        self.broker.put("there", b"x")
        self.assertEqual(bytes(self.broker.get("there").memoryview()), b"x")

    def test_get_when_interrupted_by_the_keyboard_then_keyboard_interrupt(self):
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        self.signal_in(0.1, signal.SIGINT)
        with self.assertRaises(KeyboardInterrupt):
            self.broker.get("never", timeout=50)

    def test_get_when_a_handler_returns_then_it_goes_on(self):
        calls = []

        def handle(*_):
            # A handler may call the library.
            calls.append(bytes(self.broker.get("other", timeout=5).memoryview()))
            self.broker.put("late", b"here")

        self.broker.put("other", b"o")
        signal.signal(signal.SIGUSR1, handle)
        self.signal_in(0.1)
        self.assertEqual(bytes(self.broker.get("late", timeout=50).memoryview()), b"here")
        self.assertEqual(calls, [b"o"])

    def test_get_when_another_thread_reads_for_it_then_stopped_at_once(self):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            others = [pool.submit(self.broker.get, f"later/{number}", timeout=50) for number in range(2)]
            time.sleep(0.2)
            for _ in range(3):
                self.assert_stopped(self.broker.get, "never", timeout=50)
            for number, other in enumerate(others):
                self.broker.put(f"later/{number}", b"x")
                self.assertEqual(bytes(other.result(SOON_S).memoryview()), b"x")

    def test_calls_when_the_broker_does_not_answer_then_each_is_stopped_at_once(self):
        broker = self.other
        group = broker.create({"group": (1, "uint8")})
        broker.put("here", b"x")
        broker.put("gone", b"x")
        of_others = self.broker.empty(1).handle
        calls = {
            "isolated": lambda: broker.empty(1, memory="isolated"), "put": lambda: broker.put("p", b""), "get": lambda: broker.get("here"),
            "delete": lambda: broker.delete("gone"), "touch": lambda: broker.touch("here"), "stat": lambda: broker.stat("here"),
            "list": lambda: list(broker.list()), "create": lambda: broker.create({"c": (1, "uint8")}), "seal": group.seal,
            "open": lambda: broker.open(of_others), "flush": broker.flush,
            "watch": lambda: broker.watch("w"), "connect": lambda: fdbroker.connect(self.broker.socket),
        }  # fmt: skip
        os.kill(self.broker.pid, signal.SIGSTOP)
        try:
            for name, call in calls.items():
                with self.subTest(name):
                    self.assert_stopped(call)
        finally:
            os.kill(self.broker.pid, signal.SIGCONT)
        self.assertEqual(broker.stat("here").size, 1)

    def test_watch_when_a_handler_raises_then_stopped_at_once(self):
        with self.broker.watch("nothing/") as watch:
            self.assert_stopped(next, watch)

    def test_wakeup_fd_when_a_wait_is_stopped_then_it_is_the_programs(self):
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close), self.addCleanup(theirs.close)
        ours.setblocking(False), theirs.setblocking(False)
        self.addCleanup(signal.set_wakeup_fd, signal.set_wakeup_fd(theirs.fileno()))
        self.assert_stopped(self.broker.get, "never", timeout=50)
        self.assertEqual(ours.recv(10), bytes([signal.SIGUSR1]))
        self.assertEqual(signal.set_wakeup_fd(-1), theirs.fileno())

    def test_connections_when_their_begin_and_end_are_stopped_then_none_is_left_and_no_exception_is_lost(self):
        came, unraisable = self.alarms()
        gc.collect()
        fds, chance, caught = open_fds(), random.Random(39), 0
        for _ in range(1000):
            before, after = len(came), 1e-5 + chance.random() * 3e-3
            while len(came) == before:
                try:
                    # Once: an exception of the round before may come first.
                    if after:
                        signal.setitimer(signal.ITIMER_REAL, after)
                        after = 0.0
                    while len(came) == before:
                        fdbroker.connect(self.broker.socket).close()
                except Stopped:
                    caught += 1
        gc.collect()
        # It may be the last one that was left, and the exception of the last one.
        for _ in range(2):
            try:
                fdbroker.connect(self.broker.socket).close()
            except Stopped:
                caught += 1
        self.assertEqual(open_fds(), fds)
        self.assertEqual(len(came), caught + len(unraisable))

    def test_close_when_a_handler_raises_then_at_once_and_the_memory_is_given_back(self):
        came, unraisable = self.alarms()
        kept = self.broker.array(b"kept")
        wanted, chance, caught = kept.handle, random.Random(39), 0
        for _ in range(500):
            view, before = self.other.open(wanted), len(came)
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-6 + chance.random() * 3e-5)
                view.close()
                # Python up to 3.12 may forget that a signal has come, until something gives up the interpreter.
                while len(came) == before:
                    time.sleep(0)
            except Stopped:
                caught += 1
        self.assertEqual(len(came), caught + len(unraisable))
        kept.close()
        self.other.empty_cache()
        self.broker.flush()
        self.eventually(self.is_empty)

    def test_handlers_when_they_raise_at_any_step_of_the_look_then_it_goes_on(self):
        came, _ = self.alarms()
        self.addCleanup(_waits._arm)
        _waits._arm()
        chance, outside = random.Random(39), 0
        for _ in range(300):
            before = len(came)
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + chance.random() * 1e-4)
                while len(came) == before:
                    _waits._look(None)
            except Stopped:
                outside += 1
        self.assertEqual(len(_waits._raised) + outside, 300)
        self.assertGreater(len(_waits._raised), 0)

    def test_connection_when_its_end_is_stopped_before_it_begins_then_closed_by_the_next(self):
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        self.addCleanup(setattr, sys, "unraisablehook", hook)

        def stop_in(name):
            """As a handler does that raises as the function begins. Python forgets it then."""

            def trace(frame, event, _):
                if event == "call" and frame.f_code.co_name == name and frame.f_code.co_filename.endswith("_context.py"):
                    raise Stopped

            sys.settrace(trace)

        self.addCleanup(sys.settrace, sys.gettrace())
        gc.collect()
        fds = open_fds()
        made = fdbroker.connect(self.broker.socket)
        stop_in("give_back")
        try:
            made.close()
        except Stopped:
            # The exception has the last reference.
            stop_in("__del__")
        self.assertIsNone(sys.gettrace())
        self.assertGreater(open_fds(), fds)
        fdbroker.connect(self.broker.socket).close()
        self.assertEqual(open_fds(), fds)

    def test_leases_when_a_thousand_calls_are_stopped_then_none_is_left(self):
        kept = self.broker.empty(1)
        handle_of_it = kept.handle
        self.broker.put("there", b"there")
        self.other.empty(4096).close()
        gc.collect()
        fds, chance, came, stopped = open_fds(), random.Random(39), [], 0

        def handle(*_):
            came.append(time.monotonic())
            raise Stopped

        go = threading.Semaphore(0)

        def send():
            for _ in range(1000):
                go.acquire()
                time.sleep(chance.random() * 0.0004)
                os.kill(os.getpid(), signal.SIGUSR1)

        signal.signal(signal.SIGUSR1, handle)
        # Else the sender waits for the interpreter, not the handler for a signal.
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-4)
        # Python reports, and goes on, when a handler raises as the collector begins to give something back.
        self.addCleanup(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = lambda _: None
        sender = threading.Thread(target=send)
        sender.start()
        for turn in range(1, 1001):
            try:
                go.release()
                while len(came) < turn:
                    with self.other.open(handle_of_it):
                        pass
                    self.other.get("there")
                    self.other.empty(4096)
                    self.other.empty_cache()
            except Stopped:
                stopped += 1
        sender.join()
        # What a handler raised in the collector is raised by the next call.
        with contextlib.suppress(Stopped):
            self.other.flush()
        self.assertEqual(len(came), 1000)
        self.assertGreater(stopped, 950)
        gc.collect()
        self.other.empty_cache()
        self.assertEqual(self.other.stats()["registrations"], 0)
        self.eventually(lambda: self.ledger("mapped_leases") == 0 and self.ledger("open_leases") == 0)
        self.assertLessEqual(open_fds(), fds)

    def test_waits_when_many_are_stopped_at_any_moment_then_soon_and_none_is_left_at_the_broker(self):
        go, took = threading.Semaphore(0), []

        def send():
            while go.acquire() and len(took) < 300:
                time.sleep(0.0005)
                os.kill(os.getpid(), signal.SIGUSR1)

        thread = threading.Thread(target=send)
        thread.start()
        while len(took) < 300:
            go.release()
            began = time.monotonic()
            with self.assertRaises(Stopped):
                self.other.get("never", timeout=50)
            took.append(time.monotonic() - began)
        go.release()
        thread.join()
        # Also one that came just before the wait.
        self.assertLess(max(took), 10)
        self.eventually(lambda: self.ledger("parked_requests") == 0)

    def test_wait_when_the_interpreter_ends_then_no_hang_and_no_word(self):
        status, _, err = script(
            """
            import fdbroker, os, signal, sys, threading, time
            broker = fdbroker.connect(sys.argv[1])
            threading.Thread(target=lambda: broker.get("never", timeout=50), daemon=True).start()
            def interrupt():
                time.sleep(0.3)
                os.kill(os.getpid(), signal.SIGINT)
            threading.Thread(target=interrupt, daemon=True).start()
            try:
                broker.get("never", timeout=50)
            except KeyboardInterrupt:
                sys.exit(7)
            """,
            self.broker.socket,
        )
        self.assertEqual((status, err), (7, ""))


class Native(BrokerCase):
    def test_agets_when_names_come_later_then_awaited_without_a_thread(self):
        async def main():
            tasks = [asyncio.ensure_future(self.other.aget(f"later/{number}", timeout=SOON_S)) for number in range(200)]
            await asyncio.sleep(0.3)
            threads = threading.active_count()
            await self.broker.aput("later/199", b"199")
            self.assertEqual(bytes((await tasks[199]).memoryview()), b"199")
            self.broker.put_many({f"later/{number}": b"%d" % number for number in range(199)})
            got = await asyncio.gather(*tasks[:199])
            return threads, [bytes(one.memoryview()) for one in got]

        before = threading.active_count()
        threads, got = asyncio.run(main(), debug=True)
        self.assertEqual(got, [b"%d" % number for number in range(199)])
        self.assertLessEqual(threads, before + 8)

    def test_agets_when_ten_thousand_wait_then_they_cost_memory_and_no_threads(self):
        async def main():
            names = [f"many/{number}" for number in range(10000)]
            before, fds = threading.active_count(), open_fds()
            tasks = [asyncio.ensure_future(self.other.aget(name, timeout=10 * SOON_S)) for name in names]
            await asyncio.sleep(0)
            # One that is there does not wait for those that are not.
            self.broker.put("there", b"now")
            self.assertEqual(bytes((await asyncio.wait_for(self.other.aget("there", timeout=SOON_S), SOON_S)).memoryview()), b"now")
            self.broker.put("many/9999", b"last")
            self.assertEqual(bytes((await asyncio.wait_for(tasks[9999], SOON_S)).memoryview()), b"last")
            self.assertLessEqual(threading.active_count(), before + 8)
            self.assertLess(open_fds(), fds + 16)
            began = time.monotonic()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return time.monotonic() - began

        self.assertLess(asyncio.run(main()), SOON_S)
        # Nothing is left of them at the broker.
        self.eventually(lambda: self.ledger("parked_requests") == 0)

    def test_aget_when_cancelled_then_at_once_and_the_default_executor_is_free(self):
        async def main():
            loop = asyncio.get_running_loop()
            loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
            tasks = [asyncio.ensure_future(self.other.aget("never", timeout=SOON_S)) for _ in range(30)]
            await asyncio.sleep(0.2)
            self.assertEqual(await asyncio.wait_for(loop.run_in_executor(None, lambda: 7), SOON_S), 7)
            began = time.monotonic()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return time.monotonic() - began

        self.assertLess(asyncio.run(main()), AT_ONCE_S)

    def test_aget_when_its_time_is_over_then_timed_out_names_it(self):
        async def main():
            with self.assertRaises(fdbroker.NotFound):
                await self.other.aget("never", timeout=0)
            began = time.monotonic()
            with self.assertRaisesRegex(fdbroker.TimedOut, "never"):
                await self.other.aget("never", timeout=0.3)
            return time.monotonic() - began

        took = asyncio.run(main())
        self.assertTrue(0.29 < took < 3, took)

    def test_loops_when_two_run_in_two_threads_then_each_has_its_own(self):
        def work(number):
            async def main():
                wait = asyncio.ensure_future(self.other.aget(f"of/{number}", timeout=SOON_S))
                await asyncio.sleep(0.2)
                await self.broker.aput(f"of/{number}", b"%d" % number)
                return bytes((await wait).memoryview())

            return [asyncio.run(main(), debug=True) for _ in range(1)][0]

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            self.assertEqual(list(pool.map(work, range(2))), [b"0", b"1"])

    def test_loop_when_closed_with_gets_pending_then_no_word_and_the_next_works(self):
        status, out, err = script(
            """
            import asyncio, fdbroker, gc, sys
            broker = fdbroker.connect(sys.argv[1])
            async def begin():
                for number in range(40):
                    asyncio.get_running_loop().create_task(broker.aget(f"never/{number}", timeout=50))
                await asyncio.sleep(0.3)
            loop = asyncio.new_event_loop()
            loop.set_exception_handler(lambda *_: None)
            loop.run_until_complete(begin())
            loop.close()
            del loop
            gc.collect()
            broker.put("here", b"x")
            print(bytes(asyncio.run(broker.aget("here")).memoryview()))
            """,
            self.broker.socket,
        )
        self.assertEqual((status, out), (0, "b'x'\n"), err)
        self.assertNotIn("Traceback", err)

    def test_aopen_when_the_cap_is_full_then_other_tasks_go_on_and_it_comes(self):
        made = self.broker.array(b"later")

        async def main():
            opened = await asyncio.gather(*(self.other.aopen(made.handle) for _ in range(100)))
            return {bytes(one.memoryview()[:5]) for one in opened}

        self.assertEqual(asyncio.run(main()), {b"later"})

    def test_aopens_when_their_owner_is_stopped_then_others_open_what_is_there(self):
        text = """
        import fdbroker, sys
        owner = fdbroker.connect(sys.argv[1])
        made = [owner.array(b"1" * 4096) for _ in range(30)]
        print(" ".join(bytes(one.handle).hex() for one in made), flush=True)
        sys.stdin.read()
        """
        owner = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(text), self.broker.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(owner.wait)
        self.addCleanup(owner.kill)
        silent = [bytes.fromhex(one) for one in owner.stdout.readline().split()]
        good = self.broker.array(b"good")
        self.broker.put("there", b"x" * 5000)
        os.kill(owner.pid, signal.SIGSTOP)
        run_program(self.broker, "evict", f"pid:{owner.pid}")

        async def main():
            waiting = [asyncio.ensure_future(self.other.aopen(handle, timeout=SOON_S)) for handle in silent]
            await asyncio.sleep(0.3)
            opened = await self.other.aopen(good.handle, timeout=5)
            got = await self.other.aget("there", timeout=5)
            with self.assertRaises(fdbroker.TimedOut):
                await self.other.aget("never", timeout=0.5)
            with self.assertRaises(fdbroker.TimedOut):
                await self.other.aopen(silent[0], timeout=0.5)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            return bytes(opened.memoryview()[:4]), got.nbytes

        began = time.monotonic()
        self.assertEqual(asyncio.run(main()), (b"good", 5000))
        self.assertLess(time.monotonic() - began, SOON_S / 2)

    def test_aget_when_cancelled_at_any_moment_then_no_word(self):
        status, out, err = script(
            """
            import asyncio, fdbroker, sys
            broker = fdbroker.connect(sys.argv[1])
            async def main():
                for turn in range(100):
                    tasks = [asyncio.ensure_future(broker.aget(f"never/{number}", timeout=5)) for number in range(20)]
                    await asyncio.sleep(0.0003 * (turn % 8))
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
            asyncio.run(main())
            """,
            self.broker.socket,
        )
        self.assertEqual((status, out, err), (0, "", ""))

    def test_loops_when_closed_with_waits_of_each_kind_then_no_fd_is_left(self):
        watch, notices = self.other.watch("never/"), self.other.notices()

        def pending():
            async def begin():
                for _ in range(3):
                    asyncio.ensure_future(self.other.aget("never", timeout=SOON_S))
                await asyncio.sleep(0.01)

            loop = asyncio.new_event_loop()
            loop.set_exception_handler(lambda *_: None)
            loop.run_until_complete(begin())
            loop.close()

        def follow(source):
            async def one():
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(source.__anext__(), 0.002)

            return lambda: asyncio.run(one())

        for once in (pending, follow(watch), follow(notices)):
            once()
            gc.collect()
            before = open_fds()
            for _ in range(30):
                once()
            # Those of the last one or two go when the next one comes; threads may have the last answers in hand.
            self.eventually(lambda: gc.collect() >= 0 and open_fds() < before + 10)

    def test_loops_when_many_come_and_go_then_no_fd_is_left(self):
        self.broker.put("here", b"x")

        async def main():
            (await self.other.aget("here")).close()
            with self.assertRaises(fdbroker.TimedOut):
                await self.other.aget("never", timeout=0.01)

        asyncio.run(main())
        gc.collect()
        before = open_fds()
        for _ in range(20):
            asyncio.run(main())

        def are_gone():
            # A thread may still begin a watch for a loop that has ended, and holds it until then.
            gc.collect()
            return open_fds() <= before

        self.eventually(are_gone)


class NativeAtCaps(BrokerCase):
    """What waits for room, or for an owner, and what does not."""

    options = {"max_fds": 24, "settings": {"limits.recall_timeout_ms": 600000}}

    def fill(self):
        full = []
        with contextlib.suppress(fdbroker.NoQuota):
            while True:
                full.append(self.broker.empty(4096, memory="isolated", timeout=0))
        return full

    def test_aputs_when_they_wait_for_room_then_agets_and_their_times_are_their_own(self):
        self.broker.put("there", b"x" * 5000)
        full = self.fill()

        async def timed(call, error):
            began = time.monotonic()
            with self.assertRaises(error):
                await call
            return time.monotonic() - began

        async def main():
            waiting = [asyncio.ensure_future(self.other.aput(f"put/{n}", b"x" * 100, timeout=SOON_S)) for n in range(8)]
            await asyncio.sleep(0.3)
            took = await asyncio.gather(
                timed(self.other.aget("never", timeout=0.5), fdbroker.TimedOut), timed(self.other.aget("never", timeout=0), fdbroker.NotFound),
                timed(self.other.aput("late", b"x" * 100, timeout=0.5), fdbroker.NoQuota),
            )  # fmt: skip
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            # Nothing of them is in the way, though those calls had a minute.
            full.clear()
            gc.collect()
            return took, await asyncio.wait_for(self.other.aput("after", b"x" * 100, timeout=SOON_S), SOON_S)

        took, version = asyncio.run(main())
        self.assertTrue(all(one < 5 for one in took) and version > 0, took)

    def test_process_when_ctrl_c_stops_a_call_in_a_thread_then_it_ends(self):
        for call in ('aput("n", b"x" * 100, timeout=None)', 'aempty(4096, memory="isolated", timeout=None)'):
            status, out, err = script(
                f"""
                import asyncio, fdbroker, os, signal, sys, threading
                broker, full = fdbroker.private_broker(max_fds=24), []
                try:
                    while True:
                        full.append(broker.empty(4096, memory="isolated", timeout=0))
                except fdbroker.NoQuota:
                    pass
                async def main():
                    await broker.{call}
                threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
                try:
                    asyncio.run(main())
                except KeyboardInterrupt:
                    print("stopped")
                """
            )
            self.assertEqual((status, out, err), (0, "stopped\n", ""))


class Watches(BrokerCase):
    def test_watch_when_names_come_and_go_then_told_in_their_order(self):
        with self.other.watch("w/") as watch:
            first = self.broker.put("w/a", b"1")
            self.broker.put("other", b"")
            second = self.broker.put("w/a", b"2", replace=True)
            self.broker.delete("w/a")
            found = []
            for event in watch:
                found.append(event)
                if event.kind == "deleted":
                    break
            self.assertEqual([one.name for one in found], ["w/a"] * len(found))
            self.assertEqual((found[0].kind, found[0].version), ("sealed", first))
            self.assertEqual(found[-1].version, second)
            self.assertIsNone(watch.next(timeout=0.05))
        with self.assertRaises(fdbroker.Closed):
            watch.next()
        self.assertEqual(list(watch), [])

    def test_watch_when_iterated_in_asyncio_then_events_come_and_close_ends_it(self):
        async def main():
            watch, found = self.other.watch("w/"), []

            async def follow():
                async for event in watch:
                    found.append((event.kind, event.name))
                return "ended"

            task = asyncio.ensure_future(follow())
            for number in range(5):
                await self.broker.aput(f"w/{number}", b"")
            while len(found) < 5:
                await asyncio.sleep(0.01)
            watch.close()
            return await asyncio.wait_for(task, SOON_S), found

        self.assertEqual(asyncio.run(main()), ("ended", [("sealed", f"w/{number}") for number in range(5)]))

    def test_watch_when_nobody_reads_then_it_says_that_events_were_lost(self):
        with self.other.watch("w/") as watch:
            for turn in range(10):
                self.broker.put_many({f"w/{number}": b"" for number in range(250)}, replace=True, timeout=SOON_S)
            kinds = set()
            while True:
                event = watch.next(timeout=0.5)
                if event is None:
                    break
                kinds.add(event.kind)
            self.assertIn("lost", kinds)


if __name__ == "__main__":
    unittest.main()
