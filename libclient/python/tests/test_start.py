"""A broker that starts itself: connect(start=True) and FDBROKER_START. Each test has a place of its own, and ends its broker."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import fdbroker
from support import SOON_S, open_fds, script

#: What schedulers set: whoever runs the tests may be in a job.
JOB = ("SLURM_JOB_ID", "SLURM_STEP_ID", "FLUX_JOB_ID", "PBS_JOBID")


def own_bytes(memory):
    """In a process that has asked for no broker."""
    return bytes(memory.memoryview()[:4])


@unittest.skipIf(os.path.exists("/run/fdbroker"), "/run/fdbroker is there, as of a node service: nothing is started")
class Start(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        for name in JOB:
            os.environ.pop(name, None)
        os.environ["TMPDIR"] = self.folder = folder.name
        self.addCleanup(self.stop)

    def fdbroker(self, *words):
        return subprocess.run([sys.executable, "-m", "fdbroker", *words], capture_output=True, text=True, timeout=SOON_S)

    def stop(self):
        self.fdbroker("stop")

    def program(self, text):
        """A program in the place of fdbroker."""
        path = os.path.join(self.folder, "other")
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o755)
        os.environ["FDBROKER_PROGRAM"] = path

    def test_start_when_two_ask_then_one_broker_that_commands_find(self):
        with fdbroker.connect(start=True) as one, fdbroker.connect(start=True) as other:
            self.assertEqual(one.socket, other.socket)
            self.assertTrue(one.socket.startswith(self.folder), one.socket)
            made = one.array(b"both")
            self.assertEqual(bytes(other.open(made.handle).memoryview()[:4]), b"both")
            told = self.fdbroker("status")
            self.assertIn("started by a program", told.stdout, told.stderr)
            with fdbroker.connect(one.socket) as named:
                self.assertEqual(bytes(named.open(made.handle).memoryview()[:4]), b"both")

    def test_start_when_nobody_asks_then_not_connected_and_nothing_is_made(self):
        for connect in (fdbroker.connect, lambda: fdbroker.connect(start=False)):
            self.assertRaises(fdbroker.NotConnected, connect)
        self.assertEqual(os.listdir(self.folder), [])

    def test_start_when_the_environment_asks_then_the_first_use_has_a_broker(self):
        text = "import fdbroker; b = fdbroker.connect(); print(b.socket); fdbroker.connect(start=True).close()"
        status, out, err = script(text, FDBROKER_START="1")
        self.assertEqual((status, err), (0, ""))
        with fdbroker.connect(start=True) as broker:
            self.assertEqual(out.strip(), broker.socket)

    def test_start_when_a_reference_is_loaded_elsewhere_then_it_finds_the_broker(self):
        with fdbroker.connect(start=True) as broker:
            made = broker.array(b"word")
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                self.assertEqual(pool.apply(own_bytes, (made,)), b"word")
            self.assertIn(broker.socket.encode(), pickle.dumps(made))

    def test_start_when_the_program_waits_for_children_then_it_has_none_and_hears_of_none(self):
        text = """
            import fdbroker, os, signal
            died = []
            def fds():
                return len(os.listdir("/proc/self/fd"))
            before = fds()
            for action in (signal.SIG_DFL, signal.SIG_IGN, lambda *_: died.append(1)):
                signal.signal(signal.SIGCHLD, action)
                with fdbroker.connect(start=True):
                    try:
                        print(os.waitpid(-1, os.WNOHANG))
                    except ChildProcessError:
                        pass
            print(died, fds() - before)
            """
        self.assertEqual(script(text), (0, "[] 0\n", ""))

    def test_start_when_the_program_blocks_and_handles_signals_then_the_broker_does_not(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
        self.addCleanup(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGUSR1, signal.SIGTERM})
        with fdbroker.connect(start=True):
            self.assertEqual(signal.pthread_sigmask(signal.SIG_BLOCK, ()), {signal.SIGUSR1, signal.SIGTERM})
            import json

            pid = json.loads(self.fdbroker("status", "--json").stdout)["pid"]
            with open(f"/proc/{pid}/status") as file:
                masks = dict(line.split(":\t", 1) for line in file if line.startswith("Sig"))
            blocked = int(masks["SigBlk"], 16)
            self.assertFalse(blocked >> (signal.SIGUSR1 - 1) & 1, masks)

    def test_start_when_many_threads_and_forked_children_ask_then_all_have_it(self):
        sockets, pids = [], []

        def ask():
            with fdbroker.connect(start=True, timeout=SOON_S) as broker:
                sockets.append(broker.socket)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    with fdbroker.connect(start=True, timeout=SOON_S):
                        status = 0
                finally:
                    os._exit(status)
            pids.append(child)
        for thread in threads:
            thread.join()
        self.assertEqual([os.waitpid(pid, 0)[1] for pid in pids], [0] * 4)
        self.assertEqual((len(sockets), len(set(sockets))), (8, 1))

    def test_start_when_memory_is_kept_then_one_warning_says_with_what_it_ends(self):
        with fdbroker.connect(start=True) as broker:
            with self.assertWarnsRegex(fdbroker.KeptEndsWithBroker, "fdbroker status"):
                broker.put("kept", b"bytes", keep=60)

    def test_start_when_a_signal_handler_raises_then_it_ends_at_once(self):
        class Alarm(Exception):
            pass

        def ring(*_):
            raise Alarm

        self.program("exec sleep 30")
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, ring))
        fds = open_fds()
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        began = time.monotonic()
        with self.assertRaises(Alarm):
            fdbroker.connect(start=True, timeout=SOON_S)
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(open_fds(), fds)

    def test_start_when_the_program_is_wrong_then_its_words_and_the_deadline_holds(self):
        self.program("echo fdbroker: such a pity >&2; exit 1")
        with self.assertRaisesRegex(fdbroker.NotConnected, "such a pity"):
            fdbroker.connect(start=True)
        self.program("exec sleep 30")
        with self.assertRaisesRegex(fdbroker.NotConnected, "by the deadline"):
            fdbroker.connect(start=True, timeout=0.3)
        os.environ["FDBROKER_PROGRAM"] = "/nowhere/fdbroker"
        with self.assertRaisesRegex(fdbroker.NotSupported, "/nowhere/fdbroker"):
            fdbroker.connect(start=True)

    def test_start_when_the_program_preloads_and_has_settings_then_the_broker_has_none(self):
        text = """
            import fdbroker, subprocess, sys, json
            with fdbroker.connect(start=True) as broker:
                told = subprocess.run([sys.executable, "-m", "fdbroker", "status", "--json"], stdout=subprocess.PIPE)
                with open(f"/proc/{json.loads(told.stdout)['pid']}/environ") as file:
                    names = {item.partition("=")[0] for item in file.read().split("\\0")}
                print(sorted(name for name in names if name.startswith("FDBROKER_") or name == "LD_PRELOAD"), "TMPDIR" in names)
            """
        # The C library's own: it is there, and does nothing.
        preload = next(line.split()[-1] for line in open("/proc/self/maps") if "/libc.so" in line or "/libc-" in line)
        status, out, err = script(text, LD_PRELOAD=preload, FDBROKER_MAX_FDS="7", FDBROKER_LOG="off")
        self.assertEqual((status, out, err), (0, "[] True\n", ""))


if __name__ == "__main__":
    unittest.main()
