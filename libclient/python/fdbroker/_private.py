"""A broker of one's own, for a program and its children. Must never outlive them: it ends when the last of them does."""

import fcntl
import os
import select
import shutil
import subprocess
import tempfile
from typing import Any, Dict, List, Optional

from . import _native
from ._broker import Broker, connect
from ._errors import NotConnected, NotSupported

#: Seconds until a broker that was just started must serve, on a busy machine.
START_S = 30.0
#: Seconds that its end may take before it is killed.
END_S = 10.0


class PrivateBroker(Broker):
    """A connection to a broker that this process has started: :func:`fdbroker.private_broker`. Closing it ends the broker, for
    all who use it."""

    @property
    def environment(self) -> Dict[str, str]:
        """For processes that are started: variables by which they and ``fdbroker`` find this broker."""
        admin = os.path.join(self._folder, "fdbroker-admin", "admin.sock")
        return {"FDBROKER_SOCKET": self.socket, "FDBROKER_ADMIN_SOCKET": admin}

    def _own(self, folder: str, child: "subprocess.Popen[bytes]", life: int, mark: int) -> None:
        self._folder, self._child, self._mark = folder, child, mark
        # The call that takes it out ends the broker.
        self._ends = {"life": life}
        self._owner = os.getpid()

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        return self._child.pid

    def close(self) -> None:
        """Ends the connection and the broker. Memory that is mapped stays; a second call does nothing."""
        try:
            super().close()
        finally:
            # A forked child's close is not the parent's; it gives up its copy of the pipe at its end.
            life = self._ends.pop("life", None) if getattr(self, "_owner", None) == os.getpid() else None
            if life is not None:
                os.close(life)
                _end(self._child)
                shutil.rmtree(self._folder, ignore_errors=True)
                os.close(self._mark)


def _mark(folder: str) -> int:
    """Marks it as one that goes with the processes that have this fd: when they were killed, the next private broker removes it
    (broker/src/node/leftovers.rs)."""
    with open("/proc/sys/kernel/random/boot_id") as source:
        name = f"owner-{source.read().strip()}"
    unnamed = os.path.join(folder, "owner")
    mark = os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Before it has its name: whoever finds one without a lock takes its owner for dead.
        fcntl.flock(mark, fcntl.LOCK_EX)
        os.rename(unnamed, os.path.join(folder, name))
    except BaseException:
        os.close(mark)
        raise
    return mark


def _end(child: "subprocess.Popen[bytes]") -> None:
    # By name: forked children may have the pipe open, too.
    child.terminate()
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def private_broker(max_fds: Optional[int] = None, settings: Optional[Dict[str, Any]] = None, **options: Any) -> PrivateBroker:
    """Starts a broker for this process and those that it tells, and connects to it. No root, no installation.

    max_fds: the most fds of shared memory, in the broker and granted, in all; None: the hard limit of open files. settings: keys
    of the daemon's configuration, such as ``{"limits.recall_timeout_ms": 500}``. Options as of :func:`fdbroker.connect`.

    Errors: :class:`~fdbroker.NotSupported` when the daemon cannot be run, with its own words; those of
    :func:`fdbroker.connect`.
    """
    folder = tempfile.mkdtemp(prefix="fdbroker-")
    try:
        mark = _mark(folder)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise NotSupported(f"the directory {folder} cannot be used: {error}") from error
    ready, ready_write = os.pipe()
    life_read, life = os.pipe()
    command: List[str] = [_native.program_path("fdbrokerd"), "--private", folder, "--log", "error"]
    command += ["--ready-fd", str(ready_write), "--until-eof", str(life_read)]
    if max_fds is not None:
        command += ["--max-fds", str(max_fds)]
    for key, value in (settings or {}).items():
        command += ["--set", f"{key}={value}"]
    child = None
    try:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=(ready_write, life_read, mark),
                start_new_session=True,
            )
        finally:
            os.close(ready_write)
            os.close(life_read)
        words = _await(ready, child)
        if words is not None:
            raise NotSupported(f"the broker {command[0]} does not start: {words}")
        assert child.stderr is not None, "a pipe was asked for"
        child.stderr.close()
        made = connect(os.path.join(folder, "fdbroker", "broker.sock"), **options)
    except OSError as error:
        _give_up(child, life, folder, mark)
        if isinstance(error, NotConnected):
            raise
        raise NotSupported(f"the broker cannot be run: {error}") from error
    except BaseException:
        _give_up(child, life, folder, mark)
        raise
    finally:
        os.close(ready)
    broker = PrivateBroker(made._live().take())
    made.close()
    broker._own(folder, child, life, mark)
    return broker


def _give_up(child: "Optional[subprocess.Popen[bytes]]", life: int, folder: str, mark: int) -> None:
    os.close(life)
    if child is not None:
        _end(child)
        if child.stderr is not None:
            child.stderr.close()
    shutil.rmtree(folder, ignore_errors=True)
    os.close(mark)


def _await(ready: int, child: "subprocess.Popen[bytes]") -> Optional[str]:
    """None when the broker serves; else why it does not."""
    poll = select.poll()
    poll.register(ready, select.POLLIN)
    if not poll.poll(START_S * 1000):
        return f"it does not serve after {START_S:.0f} s"
    if os.read(ready, 6) == b"READY\n":
        return None
    assert child.stderr is not None, "a pipe was asked for"
    return child.stderr.read().decode(errors="replace").strip() or f"exit status {child.wait()}"
