"""Named objects: put, got by others, listed, replaced, deleted."""

import asyncio
import gc
import os
import signal
import threading
import unittest
import warnings

import fdbroker
from support import BrokerCase, in_child, mappings, needs_numpy, numpy, script


class Objects(BrokerCase):
    def test_object_when_put_then_got_by_name_in_another_process(self):
        version = self.broker.put("weights/layer0", b"bytes of it", metadata=b"about it")
        got = self.other.get("weights/layer0")
        self.assertEqual((bytes(got.memoryview()), got.version, got.metadata), (b"bytes of it", version, b"about it"))
        self.assertTrue(got.is_current and got.memoryview().readonly and not got.writable)
        status, out, err = script(
            "import fdbroker, sys; print(bytes(fdbroker.connect(sys.argv[1]).get('weights/layer0').memoryview()))", self.broker.socket
        )
        self.assertEqual((status, out, err), (0, "b'bytes of it'\n", ""))

    def test_objects_when_put_together_then_got_together_with_one_version(self):
        versions = self.broker.put_many({"a": b"1", "b": bytearray(b"22"), "c": b""})
        self.assertEqual(len(set(versions)), 1)
        got = self.other.get_many(["c", "a", "b"])
        self.assertEqual([bytes(one.memoryview()) for one in got], [b"", b"1", b"22"])
        self.assertEqual(self.broker.put_many({}), [])

    def test_object_when_of_shared_memory_then_its_shape_goes_along(self):
        made = self.broker.zeros((3, 4), "int32")
        self.broker.put("shaped", made)
        got = self.other.get("shaped")
        self.assertEqual((got.shape, got.dtype, got.nbytes), ((3, 4), "int32", 48))

    @needs_numpy
    def test_array_when_put_then_equal_and_read_only(self):
        for array in (numpy.arange(12.0).reshape(3, 4), numpy.arange(6, dtype="int16")[::2], numpy.float32(7), numpy.zeros((0, 2))):
            self.broker.put("array", array, replace=True)
            got = self.other.get("array").numpy()
            self.assertEqual((got.shape, got.dtype), (array.shape, array.dtype))
            self.assertTrue((got == array).all() and (got.size == 0 or not got.flags.writeable))

    def test_name_when_in_use_then_exists_or_replaced(self):
        first = self.broker.put("name", b"old")
        old = self.other.get("name")
        with self.assertRaises(fdbroker.Exists):
            self.other.put("name", b"new")
        second = self.other.put("name", b"new", replace=True)
        self.assertGreater(second, first)
        self.assertEqual(bytes(self.broker.get("name").memoryview()), b"new")
        self.assertEqual((bytes(old.memoryview()), old.is_current), (b"old", False))
        with self.assertRaises(fdbroker.VersionChanged):
            self.other.put("name", b"newer", expect=first)
        self.assertGreater(self.other.put("name", b"newer", expect=second), second)

    def test_get_when_the_name_is_unknown_then_waits_or_says_so(self):
        with self.assertRaises(fdbroker.NotFound):
            self.other.get("later", timeout=0)
        with self.assertRaises(fdbroker.TimedOut):
            self.other.get("later", timeout=0.05)
        timer = threading.Timer(0.1, self.broker.put, ("later", b"here"))
        timer.start()
        self.assertEqual(bytes(self.other.get("later", timeout=60).memoryview()), b"here")
        timer.join()

    def test_object_when_deleted_then_readers_keep_it(self):
        version = self.broker.put("gone", b"still here")
        got = self.other.get("gone")
        with self.assertRaises(fdbroker.VersionChanged):
            self.broker.delete("gone", version=version + 1)
        self.broker.delete("gone", version=version)
        with self.assertRaises(fdbroker.NotFound):
            self.broker.delete("gone")
        self.assertEqual(bytes(got.memoryview()), b"still here")
        self.assertIsNone(self.broker.stat("gone"))

    def test_names_when_deleted_by_prefix_then_these_are_gone_and_no_others(self):
        self.broker.put_many({f"gone/{number}": b"" for number in range(300)}, timeout=60)
        self.broker.put("gone", b"")
        self.assertEqual(self.other.delete_prefix("gone/"), 300)
        self.assertEqual([about.name for about in self.broker.list()], ["gone"])
        self.assertEqual(self.other.delete_prefix("gone/"), 0)
        with self.assertRaisesRegex(ValueError, "empty"):
            self.other.delete_prefix("")

    def test_get_when_cached_then_the_next_one_sends_nothing_until_there_is_another_version(self):
        self.broker.put("c", b"first")
        first = self.other.get("c", cached=True)
        pointer = first.pointer
        first.close()
        again = self.other.get("c", cached=True)
        self.assertEqual((again.pointer, bytes(again.memoryview())), (pointer, b"first"))
        again.close()
        os.kill(self.broker.pid, signal.SIGSTOP)
        try:
            self.assertEqual(bytes(self.other.get("c", cached=True, timeout=0).memoryview()), b"first")
        finally:
            os.kill(self.broker.pid, signal.SIGCONT)
        self.broker.put("c", b"second", replace=True)
        self.assertEqual(bytes(self.other.get("c", cached=True).memoryview()), b"second")

    def test_error_when_it_has_a_remedy_then_in_the_words_of_python(self):
        self.broker.put("name", b"")
        with self.assertRaisesRegex(fdbroker.Exists, "replace=True"):
            self.broker.put("name", b"")
        with self.assertRaisesRegex(fdbroker.NotFound, "with a timeout"):
            self.broker.get("nobody's", timeout=0)

    def test_names_when_listed_then_in_their_order(self):
        self.broker.put_many({f"list/{number:03}": b"x" * number for number in range(300)}, timeout=60)
        self.broker.put("other", b"")
        found = list(self.other.list("list/"))
        self.assertEqual([info.name for info in found], [f"list/{number:03}" for number in range(300)])
        self.assertEqual([info.size for info in found], list(range(300)))
        about = self.other.stat("list/007")
        self.assertTrue(about.sealed and about.size == 7 and about.kind == "memfd" and not about.pinned)

    def test_object_when_its_maker_has_ended_then_kept_if_asked(self):
        script(
            "import fdbroker, sys; b = fdbroker.connect(sys.argv[1]); b.put('kept', b'k', keep=60); b.put('lost', b'l')", self.broker.socket
        )
        self.assertEqual(bytes(self.other.get("kept").memoryview()), b"k")
        self.eventually(lambda: self.other.stat("lost") is None)
        about = self.other.stat("kept")
        self.assertTrue(about.kept and about.ttl <= 60)

    def test_object_when_replaced_then_it_lasts_as_the_version_before_unless_told_otherwise(self):
        put = "import fdbroker, sys; b = fdbroker.connect(sys.argv[1]); b.put('w', b'new', replace=True, {})"
        for asked, said, lasts in (
            ({"keep": 60}, "", (True, False, 60)), ({"pin": True}, "", (True, True, None)), ({"keep": 60}, "keep=0", (True, False, 86400)),
            ({"keep": 60, "pin": True}, "pin=False", (True, False, 60)), ({"keep": 60, "pin": True}, "keep=30", (True, True, None)),
            ({"keep": 60}, "keep=False", None), ({"pin": True}, "pin=False", None), ({}, "", None),
        ):  # fmt: skip
            with self.subTest(asked=asked, said=said), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.broker.put("w", b"old", replace=True, **{"keep": False, "pin": False, **asked})
                self.assertEqual(script(put.format(said), self.broker.socket)[0], 0)
                if lasts is None:
                    self.eventually(lambda: self.other.stat("w") is None)
                    continue
                self.assertEqual(bytes(self.other.get("w").memoryview()), b"new")
                about = self.other.stat("w")
                self.assertEqual((about.kept, about.pinned, about.ttl and -(-about.ttl // 1)), lasts)

    def test_put_when_an_inherited_pin_is_too_much_then_no_quota_says_so(self):
        broker = fdbroker.private_broker(settings={"caps.domain.permanent_bytes": 4096})
        self.addCleanup(broker.close)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            broker.put("w", b"1" * 4096, pin=True)
        with self.assertRaisesRegex(fdbroker.NoQuota, "permanent_bytes.*inherits the pin.*[(]pin=False[)]"):
            broker.put("w", b"2" * 4096, replace=True)
        with self.assertRaises(fdbroker.VersionChanged):
            broker.put("w", b"2", expect=7)
        broker.put("w", b"2" * 4096, replace=True, pin=False)

    def test_object_when_touched_then_it_lives_longer(self):
        self.broker.put("touched", b"t", keep=5)
        self.assertLessEqual(self.other.stat("touched").ttl, 5)
        self.other.touch("touched", keep=50)
        self.assertGreater(self.other.stat("touched").ttl, 5)

    def test_object_when_kept_for_no_time_or_little_then_as_long_as_the_broker_allows_or_that_little(self):
        for keep, least, most in ((0, 86000, 86400), (0.0, 86000, 86400), (True, 86000, 86400), (1e300, 86000, 86400), (10**400, 86000, 86400), (60, 1, 60)):
            with self.subTest(keep=keep):
                self.broker.put("k", b"k", replace=True, keep=keep)
                about = self.other.stat("k")
                self.assertTrue(about.kept and least <= about.ttl <= most, about)
                self.broker.put("k", b"k", replace=True, keep=7)
                self.broker.touch("k", keep=keep)
                self.assertTrue(least <= self.other.stat("k").ttl <= most)
        # Not the longest time: 1 ms, after which it has gone.
        self.broker.put("k", b"k", replace=True, keep=1e-9)
        self.eventually(lambda: self.other.stat("k") is None)

    def test_object_when_keep_or_pin_mean_nothing_then_an_error_says_what_they_may_be(self):
        self.broker.put("k", b"k", keep=60)
        calls = (
            lambda **said: self.broker.put("new", b"", **said), lambda **said: self.broker.put_many({"new": b""}, **said),
            lambda **said: self.broker.create({"new": (1, "uint8")}, **said), lambda **said: self.broker.touch("k", **said),
        )  # fmt: skip
        may_be = "seconds, 0 or True for as long as the broker allows, False, or None"
        wrong = [(ValueError, -1), (ValueError, -1e-9), (ValueError, float("nan")), (ValueError, float("inf")), (TypeError, "60"), (TypeError, [60])]
        for call in calls:
            for error, keep in wrong:
                with self.subTest(keep=keep), self.assertRaisesRegex(error, may_be):
                    call(keep=keep)
            for pin in (0, 1, "yes", 2.0):
                with self.subTest(pin=pin), self.assertRaisesRegex(TypeError, "it is True, False or None"):
                    call(pin=pin)
        self.assertIsNone(self.other.stat("new"))
        with self.assertRaisesRegex(ValueError, "touch cannot end a keep: delete the object, or replace it with keep=False"):
            self.broker.touch("unknown", keep=False)
        self.broker.touch("k", keep=None, pin=None)

    def test_connect_when_its_timeout_is_none_then_as_without(self):
        fdbroker.connect(self.broker.socket, timeout=None).close()

    def test_object_when_kept_by_a_private_broker_then_warned_of_once(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.broker.put("plain", b"p")
            self.assertEqual(caught, [])
            self.broker.put("kept", b"k", keep=60)
            self.broker.put("pinned", b"p", pin=True)
            self.broker.touch("plain", keep=60)
            self.other.touch("plain", pin=True)
            third = fdbroker.connect(self.broker.socket)
            self.addCleanup(third.close)
            with third.create({"group": ((4,), "uint8")}, pin=True) as group:
                group.seal()
        self.assertEqual([one.category for one in caught], [fdbroker.KeptEndsWithBroker] * 3, "once for each connection")
        self.assertEqual([one.filename for one in caught], [__file__] * 3)
        self.assertTrue(self.other.stat("kept").ends_with_broker)

    def test_views_when_objects_are_closed_then_they_keep_them(self):
        self.broker.put("view", b"viewed")
        got = self.other.get("view")
        view = got.memoryview()
        got.close()
        with self.assertRaises(fdbroker.Closed):
            got.memoryview()
        self.assertEqual(bytes(view), b"viewed")
        leases = lambda: self.broker.stat("view").leases  # noqa: E731
        before = leases()
        del view, got
        gc.collect()
        self.eventually(lambda: leases() == before - 1)

    def test_objects_when_awaited_then_put_and_got(self):
        async def main():
            await self.broker.aput("async", b"awaited")
            return bytes((await self.other.aget("async")).memoryview())

        self.assertEqual(asyncio.run(main()), b"awaited")

    def test_name_when_it_cannot_be_one_then_value_error_or_bad_handle(self):
        for name in ("", "nul\0nul", 7):
            with self.assertRaises((ValueError, fdbroker.BadHandle)):
                self.broker.put(name, b"")
        with self.assertRaises(fdbroker.TooLong):
            self.broker.put("x" * 256, b"")


class Groups(BrokerCase):
    def test_group_when_filled_and_sealed_then_its_objects_appear_at_one_moment(self):
        with self.broker.create({"a": (4, "uint8"), "b": ((2, 3), "float32"), "none": (0, "int8")}, metadata={"b": b"about"}) as group:
            self.assertEqual(group.names, ["a", "b", "none"])
            self.assertEqual(bytes(group["b"].memoryview()), bytes(24))
            group["a"].memoryview()[:] = b"abcd"
            group.write("b", b"\x01\x02", 22)
            with self.assertRaises(fdbroker.BadHandle):
                group.write("b", b"xx", 23)
            with self.assertRaises(KeyError):
                group["c"]
            with self.assertRaises(fdbroker.NotSealed):
                self.other.get("a", timeout=0)
            version = group.seal()
        a, b, none = self.other.get_many(["a", "b", "none"])
        self.assertEqual((bytes(a.memoryview()), bytes(b.memoryview()[-3:]), none.nbytes), (b"abcd", b"\0\x01\x02", 0))
        self.assertEqual((b.shape, b.dtype, b.metadata, b.device), ((2, 3), "float32", b"about", "cpu"))
        self.assertEqual({a.version, b.version, none.version}, {version})
        with self.assertRaises(fdbroker.Sealed):
            group["a"]
        with self.assertRaises(fdbroker.Sealed):
            group.seal()

    def test_group_when_a_view_is_left_then_it_is_not_sealed_until_that_is_gone(self):
        group = self.broker.create({"viewed": (3, "uint8")})
        memory = group["viewed"]
        view = memory.memoryview()
        with self.assertRaises(fdbroker.SealedBusy):
            group.seal()
        view[:] = b"yes"
        # In a cycle, which the seal collects.
        cycle = [view]
        cycle.append(cycle)
        del view, cycle
        group.seal()
        with self.assertRaises(fdbroker.Closed):
            memory.memoryview()
        self.assertEqual(bytes(self.other.get("viewed").memoryview()), b"yes")

    def test_group_when_given_up_then_its_views_stay_and_its_names_are_free(self):
        with self.assertRaises(ZeroDivisionError), self.broker.create({"given up": (4, "uint8")}) as group:
            view = group["given up"].memoryview()
            1 / 0
        view[:] = b"free"
        self.assertTrue(self.broker.stat("given up") and not self.broker.stat("given up").sealed)
        before = mappings()
        del view, group
        gc.collect()
        self.assertLess(mappings(), before)
        self.eventually(lambda: self.other.stat("given up") is None)

    def test_group_when_a_name_is_in_use_then_exists_or_replaced_at_the_seal(self):
        self.broker.put("taken", b"old")
        with self.assertRaises(fdbroker.Exists):
            self.broker.create({"new": (1, "uint8"), "taken": (1, "uint8")})
        with self.broker.create({"taken": (3, "uint8")}, replace=True, keep=60) as group:
            self.assertEqual(bytes(self.other.get("taken").memoryview()), b"old")
            group.write("taken", b"new")
            group.seal()
        self.assertEqual(bytes(self.other.get("taken").memoryview()), b"new")
        self.assertTrue(self.other.stat("taken").kept)

    def test_group_when_its_connection_is_closed_first_then_it_can_be_sealed(self):
        broker = fdbroker.connect(self.broker.socket)
        group = broker.create({"later": (1, "uint8")}, keep=60)
        broker.close()
        group.seal()
        self.assertEqual(self.other.get("later").nbytes, 1)

    def test_group_when_forked_then_the_childs_copy_ends_without_the_parents(self):
        group = self.broker.create({"forked": (2, "uint8")})
        self.assertEqual(in_child(lambda: group.close() or gc.collect() >= 0), 0)
        group.write("forked", b"ok")
        group.seal()
        self.assertEqual(bytes(self.other.get("forked").memoryview()), b"ok")


if __name__ == "__main__":
    unittest.main()
