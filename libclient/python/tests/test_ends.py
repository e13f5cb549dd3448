"""Ends are heard: callbacks at the end of memory, the broker's notices."""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import unittest

import fdbroker
from support import SOON_S, BrokerCase, script

OWNER = """
import fdbroker, os, sys
broker = fdbroker.connect(sys.argv[1])
made = broker.array(b"of another")
print(made.handle.hex(), flush=True)
sys.stdin.read(1)
os.kill(os.getpid(), 9)
"""


class Ends(BrokerCase):
    def heard(self, heard):
        self.eventually(lambda: heard)
        return heard[0]

    def test_view_when_its_owner_closes_it_then_each_callback_is_called_once(self):
        made = self.broker.array(b"x")
        opened, again = self.other.open(made.handle), self.other.open(made.handle)
        heard, other = [], []
        opened.on_end(heard.append)
        again.on_end(other.append)
        made.close()
        self.assertIsInstance(self.heard(heard), fdbroker.Stale)
        self.heard(other)
        self.assertFalse(opened.is_current)
        # What is mapped stays.
        self.assertEqual(bytes(opened.memoryview()[:1]), b"x")
        self.other.flush()
        time.sleep(0.1)
        self.assertEqual((len(heard), len(other)), (1, 1))

    def test_view_when_its_owner_is_killed_then_owner_gone(self):
        import subprocess

        command = [sys.executable, "-c", OWNER, self.broker.socket]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
            opened, heard = self.other.open(bytes.fromhex(owner.stdout.readline())), []
            opened.on_end(heard.append)
            owner.stdin.write("x")
            owner.stdin.flush()
            self.assertIsInstance(self.heard(heard), fdbroker.OwnerGone)

    def test_callback_when_it_raises_then_reported_and_others_are_called(self):
        made, heard, reported = self.broker.array(b"x"), [], []
        self.addCleanup(setattr, threading, "excepthook", threading.excepthook)
        threading.excepthook = reported.append
        opened = self.other.open(made.handle)
        opened.on_end(lambda _: 1 / 0)
        opened.on_end(heard.append)
        made.close()
        self.heard(heard)
        self.assertEqual([one.exc_type for one in reported], [ZeroDivisionError])
        # Those of later ends, too.
        made, later = self.broker.array(b"y"), []
        opened = self.other.open(made.handle)
        opened.on_end(later.append)
        made.close()
        self.heard(later)

    def test_view_when_it_has_ended_before_then_called_at_once(self):
        made = self.broker.array(b"x")
        opened, heard = self.other.open(made.handle), []
        made.close()
        self.eventually(lambda: not opened.is_current)
        opened.on_end(heard.append)
        self.assertIsInstance(heard[0], fdbroker.Stale)

    def test_view_when_it_is_closed_or_gone_before_the_end_then_not_called(self):
        made, heard = self.broker.array(b"x"), []
        closed, gone, kept, told = self.other.open(made.handle), self.other.open(made.handle), self.other.open(made.handle), []
        for one in (closed, gone):
            one.on_end(heard.append)
        kept.on_end(told.append)
        closed.close()
        del gone, one
        gc.collect()
        made.close()
        self.heard(told)
        self.assertEqual(heard, [])

    def test_object_when_deleted_then_heard(self):
        self.broker.put("o", b"x")
        got, heard = self.other.get("o"), []
        got.on_end(heard.append)
        self.broker.delete("o")
        self.heard(heard)
        self.assertEqual(bytes(got.memoryview()), b"x")

    def test_object_when_replaced_then_heard(self):
        self.broker.put("o", b"x")
        got, heard = self.other.get("o"), []
        got.on_end(heard.append)
        self.broker.put("o", b"y", replace=True)
        self.heard(heard)

    def test_callback_when_it_lets_go_of_the_last_memory_then_the_connection_ends(self):
        made, ended = self.broker.array(b"x"), threading.Event()
        other = fdbroker.connect(self.broker.socket)
        opened = [other.open(made.handle)]
        other.close()

        def act(_):
            opened.clear()
            ended.set()

        opened[0].on_end(act)
        made.close()
        self.assertTrue(ended.wait(SOON_S))
        self.eventually(lambda: self.ledger("connections") == 2)


class Retired(BrokerCase):
    def test_buffer_when_nobody_uses_it_then_taken_back_and_not_shared_again(self):
        for kind in ("arena", "isolated"):
            with self.subTest(kind):
                made = self.broker.array(b"mine", memory=kind)
                handle = made.handle
                # Open in the cache alone: asked to let go, it does.
                self.other.open(handle).close()
                made.retire(SOON_S)
                self.assertEqual(self.ledger("mapped_leases"), 0)
                with self.assertRaises(fdbroker.Stale):
                    self.other.open(handle)
                with self.assertRaises(fdbroker.Stale):
                    made.handle
                made.retire()
                self.assertEqual(bytes(made.memoryview()), b"mine")
                made.close()
                with self.assertRaises(fdbroker.Closed):
                    made.retire()

    def test_buffer_when_a_reader_has_it_then_it_is_named_told_and_waited_for(self):
        made, heard = self.broker.array(b"x"), []
        reader = fdbroker.connect(self.broker.socket, name="reader")
        self.addCleanup(reader.close)
        opened = reader.open(made.handle)
        opened.on_end(heard.append)
        with self.assertRaisesRegex(fdbroker.TimedOut, rf"others have it still.* Now: reader \(pid {os.getpid()}\)$"):
            made.retire(timeout=0.05)
        self.eventually(lambda: heard)
        self.assertIsInstance(heard[0], fdbroker.Stale)
        threading.Timer(0.2, opened.close).start()
        made.retire(SOON_S)
        # Its place is free at once.
        held = self.broker.stats()["host_bytes_held_back"]
        made.close()
        self.assertEqual((held, self.broker.stats()["host_bytes_held_back"]), (0, 0))

    def test_buffer_when_a_handler_raises_then_the_wait_ends_and_goes_on_later(self):
        class Stopped(Exception):
            pass

        def stop(*_):
            raise Stopped

        made = self.broker.array(b"x")
        opened = self.other.open(made.handle)
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, stop))
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with self.assertRaises(Stopped):
            made.retire(None)
        opened.close()
        made.retire(SOON_S)

    def test_buffer_when_closed_while_a_reader_has_it_then_its_place_is_free_after_the_reader(self):
        made = self.broker.array(b"x")
        opened = self.other.open(made.handle)
        with self.assertRaises(fdbroker.TimedOut):
            made.retire(0)
        made.close()
        self.assertEqual(self.broker.stats()["host_bytes_held_back"], 4096)
        opened.close()
        self.eventually(lambda: self.broker.stats()["host_bytes_held_back"] == 0)


class Checkpoints(BrokerCase):
    def test_connection_when_suspended_then_idle_memory_is_closed_and_opened_again_by_resume(self):
        made, gone = self.broker.array(b"stays"), self.broker.array(b"goes")
        for one in (made, gone):
            self.other.open(one.handle).close()
        used = self.other.open(made.handle)
        in_use = self.other.suspend()
        self.assertEqual([one.same(made.handle) for one in in_use], [True])
        with self.assertRaises(fdbroker.Again):
            self.other.open(gone.handle)
        used.close()
        self.assertEqual(self.other.suspend(), [])
        self.assertEqual(self.other.stats()["entries"], 0)
        ended = gone.handle
        gone.close()
        self.broker.flush()
        self.assertEqual([one.same(ended) for one in self.other.resume()], [True])
        self.assertEqual((self.other.stats()["entries"], self.other.resume()), (1, []))
        self.assertEqual(bytes(self.other.open(made.handle).memoryview()[:5]), b"stays")


class Notices(BrokerCase):
    def test_notices_when_memory_ends_then_told_by_name_and_close_ends_the_iteration(self):
        made = self.broker.array(b"x")
        opened = self.other.open(made.handle)
        with self.other.notices() as notices, self.other.notices() as others:
            made.close()
            told = next(notices)
            self.assertEqual((told.kind, told.reason), ("revoked", "STALE"))
            self.assertEqual(told, next(others))
            self.assertIsNone(notices.next(timeout=0.05))
        self.assertEqual(list(notices), [])
        with self.assertRaises(fdbroker.Closed):
            notices.next()
        opened.close()

    def test_notices_when_iterated_in_asyncio_then_they_come(self):
        async def main():
            made = self.broker.array(b"x")
            opened = await self.other.aopen(made.handle)
            notices = self.other.notices()

            async def first():
                async for notice in notices:
                    return notice

            task = asyncio.ensure_future(first())
            await asyncio.sleep(0.1)
            made.close()
            told = await asyncio.wait_for(task, SOON_S)
            opened.close()
            return told.kind

        self.assertEqual(asyncio.run(main()), "revoked")

    def test_notices_when_the_broker_is_killed_then_disconnected(self):
        with self.other.notices() as notices:
            os.kill(self.broker.pid, signal.SIGKILL)
            self.assertEqual(notices.next(SOON_S).kind, "disconnected")

    def test_notices_when_a_handler_raises_then_stopped_at_once(self):
        class Stopped(Exception):
            pass

        def stop(*_):
            raise Stopped

        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, stop))
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with self.other.notices() as notices, self.assertRaises(Stopped):
            next(notices)

    def test_interpreter_when_it_ends_with_readers_then_clean(self):
        status, out, err = script(
            """
            import fdbroker, sys
            broker = fdbroker.connect(sys.argv[1])
            notices, watch = broker.notices(), broker.watch("")
            made = broker.array(b"x")
            opened = broker.open(made.handle)
            opened.on_end(print)
            print("end")
            """,
            self.broker.socket,
        )
        self.assertEqual((status, out, err), (0, "end\n", ""))


if __name__ == "__main__":
    unittest.main()
