"""Objects in forked children: "load in the parent, fork the workers". Children read them right whatever they allocate, close and drop,
and when they connect the broker counts the memory for them, too. Must never wait without an end."""

import ctypes
import gc
import json
import mmap
import multiprocessing
import os
import subprocess
import sys
import time
import traceback

import fdbroker

try:
    import numpy
except ImportError:
    numpy = None

#: Seconds that only a hang exceeds.
SOON_S = 60.0
NUMBERS = 262144
cases = []


def case(function):
    cases.append(function)
    return function


def allocate_a_lot():
    """Takes the addresses that are free: what malloc, numpy and threads' stacks do all the time."""
    taken = [mmap.mmap(-1, size) for size in (1 << 20, 1 << 18, 1 << 12) for _ in range(8)]
    for one in taken:
        one[:] = b"\x55" * len(one)
    return taken, [bytearray(b"\x55" * (1 << 20)) for _ in range(16)]


def wrong(view):
    """How many of the numbers are not 1.0, by each way to them."""
    count = 0
    floats = view.memoryview().cast("f")
    count += NUMBERS - floats.tolist().count(1.0)
    at_pointer = (ctypes.c_float * NUMBERS).from_address(view.pointer)
    count += NUMBERS - list(at_pointer).count(1.0)
    if numpy is not None:
        for array in (view.numpy(), numpy.asarray(view), numpy.from_dlpack(view)):
            count += int((array != 1).sum())
    if sys.version_info >= (3, 12):
        count += NUMBERS - memoryview(view).tolist().count(1.0)
    return count


def query(broker, *arguments):
    environment = {**os.environ, **broker.environment}
    done = subprocess.run([os.environ["FDBROKER"], *arguments, "--json"], env=environment, stdout=subprocess.PIPE, check=True, timeout=SOON_S)
    return json.loads(done.stdout)


def holders(broker):
    """The processes that hold leases, one for each lease."""
    return sorted(one["pid"] for one in query(broker, "holders")["holders"])


def eventually(expected, look):
    """One-way messages have no answer to wait for."""
    until = time.monotonic() + SOON_S
    while look() != expected and time.monotonic() < until:
        time.sleep(0.01)
    assert look() == expected, (look(), expected)


class Child:
    """A forked child that does what it is told, step by step: `act` is a generator function, whose yields are its answers."""

    def __init__(self, act):
        mine, its = multiprocessing.Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                for answer in act():
                    its.send(answer)
                    its.recv()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        its.close()
        self._pipe = mine

    def answer(self):
        assert self._pipe.poll(SOON_S), "the child hangs"
        return self._pipe.recv()

    def go_on(self):
        self._pipe.send(None)
        return self.answer()

    def end(self):
        self._pipe.send(None)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert status == 0, status


def ones():
    return memoryview(bytearray(b"\x00\x00\x80\x3f" * NUMBERS)).cast("f")


def put_ones(broker, name, **options):
    """An object of the numbers 1.0."""
    made = broker.empty(NUMBERS, "float32")
    made.memoryview()[:] = ones().cast("B")
    version = broker.put(name, made, **options)
    made.close()
    return version


@case
def workers_that_have_allocated_a_lot_read_every_number(broker):
    put_ones(broker, "data/x")
    view = broker.get("data/x")
    before = view.memoryview().cast("f")

    def act():
        kept = allocate_a_lot()
        yield wrong(view) + NUMBERS - before.tolist().count(1.0)
        del kept

    workers = [Child(act) for _ in range(4)]
    assert [worker.answer() for worker in workers] == [0] * 4
    for worker in workers:
        worker.end()


@case
def workers_of_multiprocessing_read_items_by_index(broker):
    put_ones(broker, "data/x")
    view = broker.get("data/x").memoryview().cast("f")
    context = multiprocessing.get_context("fork")
    tasks, answers = context.SimpleQueue(), context.SimpleQueue()

    def work():
        kept = allocate_a_lot()
        while True:
            at = tasks.get()
            if at is None:
                break
            answers.put(sum(view[at : at + 4096]))
        del kept

    workers = [context.Process(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for at in range(0, NUMBERS, 4096):
        tasks.put(at)
    sums = [answers.get() for _ in range(0, NUMBERS, 4096)]
    for _ in workers:
        tasks.put(None)
    for worker in workers:
        worker.join(SOON_S)
        assert worker.exitcode == 0, worker.exitcode
    assert sums == [4096.0] * 64, sums


@case
def workers_that_outlive_their_parent_read_on_and_are_counted_once_they_connect(broker):
    put_ones(broker, "w")

    def worker(view):
        def act():
            allocate_a_lot()
            yield "ready"
            assert wrong(view) == 0
            connection = fdbroker.connect(broker.socket)
            yield "connected"
            connection.close()
            yield "closed"
            again = fdbroker.connect(broker.socket)
            beside = fdbroker.connect(broker.socket)
            assert wrong(view) == 0
            yield "connected again"
            again.close()
            beside.close()
            gc.collect()
            assert wrong(view) == 0
            yield "closed again"

        return act

    # To the workers, past their parent, which ends.
    pipes = [multiprocessing.Pipe() for _ in range(3)]

    def parent():
        view = fdbroker.connect(broker.socket).get("w")
        for _, its in pipes:
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    for answer in worker(view)():
                        its.send((os.getpid(), answer))
                        its.recv()
                    status = 0
                finally:
                    os._exit(status)
        yield "forked"

    master = Child(parent)
    assert master.answer() == "forked"
    answers = lambda: [(pipe.poll(SOON_S) and pipe.recv()) for pipe, _ in pipes]
    ready = answers()
    pids = sorted(pid for pid, _ in ready)
    assert holders(broker) == [master.pid]
    master.end()
    eventually([], lambda: holders(broker))

    def next_answers():
        for pipe, _ in pipes:
            pipe.send(None)
        return {word for _, word in answers()}

    assert next_answers() == {"connected"}
    eventually(pids, lambda: holders(broker))
    eventually([1] * 3, lambda: [one["mapped_leases"] for one in query(broker, "clients")["clients"] if one["pid"] in pids])
    assert next_answers() == {"closed"}
    eventually([], lambda: holders(broker))
    # The first connection of the two has it, and not both.
    assert next_answers() == {"connected again"}
    eventually(pids, lambda: holders(broker))
    assert next_answers() == {"closed again"}
    eventually([], lambda: holders(broker))
    for pipe, _ in pipes:
        pipe.send(None)


@case
def what_a_child_closes_and_collects_ends_neither_its_parents_lease_nor_the_memory(broker):
    put_ones(broker, "w")
    other = fdbroker.connect(broker.socket)
    view = other.get("w")
    kept = view.memoryview().cast("f")

    def act():
        nonlocal view, other
        mine = fdbroker.connect(broker.socket)
        own = mine.get("w")
        assert wrong(own) == 0
        own.close()
        view.close()
        other.close()
        del view, other
        gc.collect()
        allocate_a_lot()
        assert kept.tolist().count(1.0) == NUMBERS
        mine.close()
        yield "closed"
        assert kept.tolist().count(1.0) == NUMBERS
        yield "read"

    child = Child(act)
    assert child.answer() == "closed"
    assert view.is_current and wrong(view) == 0
    eventually([os.getpid()], lambda: holders(broker))
    broker.delete("w")
    assert not view.is_current and wrong(view) == 0
    view.close()
    kept.release()
    del kept
    gc.collect()
    eventually([], lambda: query(broker, "ls")["allocations"])
    # The last bytes are the child's own.
    assert child.go_on() == "read"
    child.end()


@case
def a_child_of_a_child_that_has_connected_is_counted_for_itself(broker):
    put_ones(broker, "w")
    view = broker.get("w")

    def grandchild():
        allocate_a_lot()
        assert wrong(view) == 0
        mine = fdbroker.connect(broker.socket)
        yield "connected"
        assert wrong(view) == 0 and mine.connected
        yield "read"

    def child():
        mine = fdbroker.connect(broker.socket)
        inner = Child(grandchild)
        assert inner.answer() == "connected"
        yield inner.pid
        assert inner.go_on() == "read"
        inner.end()
        yield wrong(view)
        assert mine.connected

    outer = Child(child)
    inner_pid = outer.answer()
    eventually(sorted([os.getpid(), outer.pid, inner_pid]), lambda: holders(broker))
    assert outer.go_on() == 0
    eventually(sorted([os.getpid(), outer.pid]), lambda: holders(broker))
    outer.end()
    eventually([os.getpid()], lambda: holders(broker))
    assert view.is_current


@case
def what_was_replaced_or_removed_meanwhile_is_read_as_it_was_and_not_counted(broker):
    put_ones(broker, "replaced")
    put_ones(broker, "removed")
    put_ones(broker, "kept")
    views = broker.get_many(["replaced", "removed", "kept"])

    def act():
        yield "forked"
        mine = fdbroker.connect(broker.socket)
        assert [wrong(view) for view in views] == [0] * 3
        yield "connected"
        assert mine.connected

    child = Child(act)
    assert child.answer() == "forked"
    broker.put("replaced", bytes(4 * NUMBERS), replace=True)
    broker.delete("removed")
    assert child.go_on() == "connected"
    eventually(sorted([os.getpid()] * 3 + [child.pid]), lambda: holders(broker))
    child.end()


@case
def a_group_is_counted_by_any_of_its_names_and_once(broker):
    broker.put_many({"w/a": b"a", "w/b": b"b"})
    views = broker.get_many(["w/a", "w/b"]) + [broker.get("w/a")]

    def act():
        yield "forked"
        mine = fdbroker.connect(broker.socket)
        assert [bytes(view.memoryview()) for view in views] == [b"a", b"b", b"a"]
        yield "connected"
        assert mine.connected

    child = Child(act)
    assert child.answer() == "forked"
    broker.delete("w/a")
    assert child.go_on() == "connected"
    eventually([child.pid], lambda: [pid for pid in holders(broker) if pid == child.pid])
    child.end()


@case
def many_objects_are_counted_and_a_full_cap_stands_in_no_childs_way(_):
    # 300 are mapped by the parent: of the last cap there is room for 50 more. The one before has few fds to hand out at a time.
    for cap, expected in (("caps.node.mapped_leases=1000", 300), ("caps.node.fds=330", None), ("caps.node.mapped_leases=350", 50)):
        with fdbroker.private_broker(settings=dict([cap.split("=")])) as broker:
            names = ["many/%d" % at for at in range(300)]
            for name in names:
                broker.put(name, name.encode())
            views = [broker.get(name) for name in names]
            eventually(300, lambda: len(holders(broker)))

            def act():
                mine = fdbroker.connect(broker.socket)
                assert [bytes(view.memoryview()).decode() for view in views] == names
                yield "connected"
                assert mine.connected

            child = Child(act)
            assert child.answer() == "connected"
            if expected is not None:
                mapped = lambda: [one["pid"] for one in query(broker, "holders")["holders"] if one["state"] == "mapped"]
                eventually(expected, lambda: mapped().count(child.pid))
            child.end()
            del views


@case
def a_connection_to_another_broker_takes_nothing_there_and_leaves_it_to_the_right_one(broker):
    put_ones(broker, "w")
    view = broker.get("w")
    with fdbroker.private_broker() as another:
        put_ones(another, "w")

        def act():
            there = fdbroker.connect(another.socket)
            yield "connected there"
            here = fdbroker.connect(broker.socket)
            assert wrong(view) == 0 and there.connected and here.connected
            yield "connected here"

        child = Child(act)
        assert child.answer() == "connected there"
        eventually([], lambda: holders(another))
        assert child.go_on() == "connected here"
        eventually(sorted([os.getpid(), child.pid]), lambda: holders(broker))
        eventually([], lambda: holders(another))
        child.end()


@case
def memory_that_can_still_change_raises_not_connected_and_says_what_to_do(broker):
    made = broker.array(b"can change")
    other = fdbroker.connect(broker.socket)
    views = [other.open(made.handle), other.open(made.handle, writable=True)]
    assert not any(view.is_final for view in views)

    def act():
        allocate_a_lot()
        for view in views:
            ways = [view.memoryview, lambda: view.pointer, lambda: view.__dlpack__(max_version=(1, 0)), view.unmarked]
            ways += [view.numpy, lambda: numpy.asarray(view)] if numpy is not None else []
            for way in ways:
                try:
                    way()
                except fdbroker.NotConnected as error:
                    assert "View" in str(error) and "connect in the child and open it there" in str(error), error
                else:
                    raise AssertionError(way)
            assert not view.is_current
        # The parent's own memory stays.
        assert bytes(made.memoryview()[:10]) == b"can change"
        mine = fdbroker.connect(broker.socket)
        assert bytes(mine.open(handle).memoryview()[:10]) == b"can change"
        yield "done"

    handle = made.handle
    child = Child(act)
    assert child.answer() == "done"
    child.end()


def main():
    failed = 0
    for function in cases:
        try:
            with fdbroker.private_broker(settings={"limits.recall_timeout_ms": 600000}) as broker:
                function(broker)
            print("ok   ", function.__name__, flush=True)
        except BaseException:
            failed += 1
            print("FAIL ", function.__name__, flush=True)
            traceback.print_exc()
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
