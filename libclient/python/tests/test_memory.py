"""Memory of the host: made, opened, seen, closed; handles; errors."""

import copy
import gc
import pickle
import unittest

import fdbroker
from support import BrokerCase, needs_numpy, numpy


class Host(BrokerCase):
    def test_memory_when_opened_then_the_owners_bytes(self):
        made = self.broker.empty(5)
        made.memoryview()[:] = b"hello"
        opened = self.other.open(made.handle, 5)
        self.assertEqual(bytes(opened.memoryview()[:5]), b"hello")
        made.memoryview()[0:1] = b"J"
        self.assertEqual(bytes(opened.memoryview()[:5]), b"Jello")
        self.assertTrue(opened.is_current)

    def test_memory_when_opened_writable_then_the_owner_sees_it(self):
        made = self.broker.zeros(4)
        opened = self.other.open(made.handle, writable=True)
        opened.memoryview()[3] = 9
        self.assertEqual(bytes(made.memoryview()), b"\0\0\0\x09")

    def test_memory_when_opened_for_reading_then_read_only(self):
        made = self.broker.zeros(8)
        opened = self.other.open(made.handle)
        self.assertTrue(opened.memoryview().readonly)
        with self.assertRaises(TypeError):
            opened.memoryview()[0] = 1
        self.assertFalse(opened.writable)

    def test_open_when_shape_is_told_then_checked(self):
        made = self.broker.zeros((3, 4), "float32")
        opened = self.other.open(made.handle, (3, 4), "float32")
        self.assertEqual((opened.shape, opened.dtype), ((3, 4), "float32"))
        self.assertEqual(len(opened), 3)
        with self.assertRaisesRegex(ValueError, "there are 4,096"):
            self.other.open(made.handle, (1025,), "float32")
        self.assertEqual(self.other.stats()["pinned"], 1)

    def test_memory_when_it_has_no_byte_then_shared_all_the_same(self):
        made = self.broker.empty((0, 3), "int64")
        self.assertEqual((made.nbytes, len(made.memoryview())), (0, 0))
        self.assertEqual(self.other.open(made.handle, (0, 3), "int64").shape, (0, 3))

    @needs_numpy
    def test_dtype_when_it_is_any_of_numpys_of_fixed_size_then_it_goes_along(self):
        point = numpy.dtype([("x", "f4"), ("n", "i8", (2,))], align=True)
        for dtype in ("f4", "<i2", ">f4", "datetime64[ns]", "M8[D]", "timedelta64[s]", "S5", "U3", "V7", numpy.longdouble, point, "c8", bool):
            with self.subTest(dtype=dtype):
                wanted = numpy.dtype(dtype)
                made = self.broker.empty(3, dtype)
                self.assertEqual((made.numpy().dtype, made.nbytes), (wanted, 3 * wanted.itemsize))
                # By its name, as another process is told.
                opened = self.other.open(made.handle, made.shape, made.dtype)
                self.assertEqual(opened.numpy().dtype, wanted)
                values = numpy.zeros(3, dtype)
                self.broker.put("typed", values, replace=True)
                got = self.other.get("typed").numpy()
                self.assertEqual((got.dtype, got.tobytes()), (wanted, values.tobytes()))
        self.assertEqual(self.broker.empty(1, "f4").dtype, "float32")

    def test_shape_when_no_memory_is_so_large_or_it_is_no_whole_number_then_refused(self):
        for shape in (2**62 + 1024, (2**32, 2**32 + 1)):
            with self.assertRaisesRegex(ValueError, "more than any memory"):
                self.broker.empty(shape, "float32")
            with self.assertRaisesRegex(ValueError, "more than any memory"):
                self.broker.create({"large": (shape, "float32")})
        for shape in ((2, 3.7), "12", None, [b"1"]):
            with self.assertRaisesRegex(TypeError, "an int or a tuple of ints"):
                self.broker.empty(shape)

    @needs_numpy
    def test_shape_when_of_numpy_then_as_pythons(self):
        self.assertEqual(self.broker.empty(numpy.prod((3, 4))).shape, (12,))
        source = numpy.arange(6, dtype="float32").reshape(2, 3)
        self.broker.put("typed", memoryview(source))
        got = self.broker.get("typed")
        self.assertEqual((got.shape, got.dtype), ((2, 3), "float32"))

    @needs_numpy
    def test_dtype_when_it_has_no_fixed_size_then_type_error_says_so(self):
        for dtype in (object, "S", "U", numpy.dtype([("o", object)]), None, "no such type", numpy.dtype(("f4", (2,)))):
            with self.subTest(dtype=dtype), self.assertRaises(TypeError):
                self.broker.empty(1, dtype)

    def test_dtype_when_numpy_is_not_needed_then_short_names_work(self):
        for short, name in (("f4", "float32"), ("<i8", "int64"), ("|u1", "uint8"), ("u2", "uint16"), ("bfloat16", "bfloat16")):
            self.assertEqual(self.broker.empty(1, short).dtype, name)

    def test_array_when_made_of_bytes_then_copied(self):
        made = self.broker.array(b"abc")
        self.assertEqual(bytes(made.memoryview()), b"abc")

    def test_buffer_protocol_when_python_has_it_then_shaped(self):
        import sys

        made = self.broker.zeros((2, 3), "int32")
        if sys.version_info < (3, 12):
            with self.assertRaises(TypeError):
                memoryview(made)
            return
        view = memoryview(made)
        self.assertEqual((view.shape, view.format, view.readonly), ((2, 3), "i", False))

    def test_isolated_memory_when_made_then_shared(self):
        made = self.broker.array(b"alone", memory="isolated")
        self.assertEqual(bytes(self.other.open(made.handle).memoryview()[:5]), b"alone")

    def test_memory_when_recalled_then_opened_all_the_same(self):
        from support import run_program

        made = self.broker.array(b"evicted")
        handle = made.handle
        run_program(self.broker, "evict", "--all")
        self.assertEqual(self.ledger("held_fds"), 0)
        self.assertEqual(bytes(self.other.open(handle).memoryview()[:7]), b"evicted")

    def test_open_when_repeated_then_from_the_cache(self):
        made = self.broker.zeros(10)
        for _ in range(5):
            self.other.open(made.handle).close()
        stats = self.other.stats()
        self.assertEqual((stats["misses"], stats["hits"], stats["pinned"]), (1, 4, 0))
        self.assertEqual(self.other.empty_cache(), 1)

    def test_handle_of_when_pointer_is_inside_then_with_its_offset(self):
        made = self.broker.array(b"0123456789")
        inside = self.broker.handle_of(made.pointer + 4)
        self.assertEqual(inside.offset, 4)
        self.assertTrue(inside.same(made.handle) and made.handle_at(4) == inside)
        self.assertEqual(bytes(self.other.open(inside).memoryview()[:6]), b"456789")
        with self.assertRaises(fdbroker.Stale):
            self.broker.handle_of(1)
        with self.assertRaises(ValueError):
            made.handle_at(10)

    @needs_numpy
    def test_numpy_when_shaped_then_the_memory_itself(self):
        made = self.broker.empty((8, 16), "float32")
        made.numpy()[:] = numpy.arange(128, dtype="float32").reshape(8, 16)
        opened = self.other.open(made.handle, made.shape, made.dtype)
        array = opened.numpy()
        self.assertEqual((array.shape, array.dtype, array.flags.writeable), ((8, 16), numpy.float32, False))
        self.assertTrue((array == numpy.arange(128).reshape(8, 16)).all())
        made.numpy()[0, 0] = 77
        self.assertEqual(array[0, 0], 77)
        self.assertEqual(numpy.asarray(opened)[0, 0], 77)
        self.assertEqual(opened.numpy(2, "uint16").shape, (2,))

    @needs_numpy
    def test_array_when_of_each_type_then_equal(self):
        for name in ["bool", "uint8", "int16", "int64", "float16", "float64", "complex64", "complex128"]:
            source = numpy.array([[0, 1, 1], [1, 0, 1]], name)
            made = self.broker.array(source)
            opened = self.other.open(made.handle, made.shape, made.dtype)
            self.assertTrue((opened.numpy() == source).all(), name)

    @needs_numpy
    def test_dlpack_when_taken_then_no_copy_and_the_view_keeps_it(self):
        made = self.broker.empty((2, 3), "float64")
        made.numpy()[:] = 5
        array = numpy.from_dlpack(made)
        self.assertEqual(array.ctypes.data, made.pointer)
        opened = self.other.open(made.handle, (2, 3), "float64", writable=True)
        taken = numpy.from_dlpack(opened)
        self.assertEqual(taken.shape, (2, 3))
        opened.close()
        del opened
        gc.collect()
        self.assertEqual(self.other.stats()["pinned"], 1)
        self.assertTrue((taken == 5).all())
        del taken
        gc.collect()
        self.assertEqual(self.other.stats()["pinned"], 0)

    @needs_numpy
    def test_dlpack_when_opened_for_reading_then_never_writable(self):
        made = self.broker.zeros(3, "int32")
        opened = self.other.open(made.handle, 3, "int32")
        with self.assertRaises(BufferError):
            opened.__dlpack__()
        if numpy.lib.NumpyVersion(numpy.__version__) >= "2.1.0":
            self.assertFalse(numpy.from_dlpack(opened).flags.writeable)

    def test_dlpack_when_nobody_takes_the_capsule_then_nothing_is_kept(self):
        from fdbroker import _dlpack

        made, before = self.broker.zeros(3), _dlpack.lent()
        for version in (None, (1, 0), (2, 1)):
            capsule = made.__dlpack__(max_version=version)
            self.assertEqual(_dlpack.lent(), before + 1)
            del capsule
            self.assertEqual(_dlpack.lent(), before)
        with self.assertRaises(BufferError):
            made.__dlpack__(copy=True)
        with self.assertRaises(BufferError):
            made.__dlpack__(dl_device=(2, 0))
        self.assertEqual(made.__dlpack_device__(), (1, 0))


class Lifetime(BrokerCase):
    def test_close_when_a_view_is_left_then_the_view_is_good(self):
        made = self.broker.array(b"kept")
        opened = self.other.open(made.handle)
        view = opened.memoryview()
        opened.close()
        made.close()
        self.assertEqual(bytes(view[:4]), b"kept")
        self.assertEqual(self.other.stats()["pinned"], 1)
        del view
        gc.collect()
        self.assertEqual(self.other.stats()["pinned"], 0)

    def test_use_when_closed_then_raises(self):
        made = self.broker.zeros(4)
        opened = self.other.open(made.handle)
        with opened, made:
            pass
        for use in (
            opened.memoryview, made.memoryview, opened.__dlpack__, lambda: opened.pointer, lambda: opened.is_current,
            lambda: made.handle,
        ):  # fmt: skip
            with self.assertRaises(fdbroker.Closed):
                use()
        self.assertTrue(opened.closed and "closed" in repr(opened))
        opened.close()
        made.close()

    def test_owner_when_closed_then_stale_for_others_and_not_current(self):
        made = self.broker.array(b"gone")
        handle, opened = made.handle, self.other.open(made.handle)
        made.close()
        self.broker.flush()
        self.assertFalse(opened.is_current)
        self.assertEqual(bytes(opened.memoryview()[:4]), b"gone")
        with self.assertRaises(fdbroker.Stale) as raised:
            self.other.open(handle)
        self.assertEqual((raised.exception.name, raised.exception.code), ("STALE", 4))

    def test_broker_when_closed_then_its_memory_is_still_seen(self):
        made = self.broker.array(b"seen")
        opened = self.other.open(made.handle)
        view = opened.memoryview()
        self.other.close()
        self.assertTrue(self.other.closed)
        self.assertEqual(bytes(view[:4]), b"seen")
        with self.assertRaises(fdbroker.Closed):
            self.other.open(made.handle)
        with self.assertRaises(fdbroker.Closed):
            self.other.stats()
        self.assertFalse(self.other.connected)
        self.assertEqual(self.ledger("connections"), 2)
        del view, opened
        gc.collect()
        self.eventually(lambda: self.ledger("connections") == 1)

    def test_private_broker_when_closed_then_its_process_and_folder_are_gone(self):
        import os

        broker = fdbroker.private_broker()
        folder, pid = broker._folder, broker.pid
        broker.close()
        broker.close()
        self.assertFalse(os.path.exists(folder))
        with self.assertRaises(ProcessLookupError):
            os.kill(pid, 0)

    def test_broker_when_killed_then_not_connected_and_memory_stays(self):
        import os
        import signal

        made = self.broker.array(b"mine")
        opened = self.other.open(made.handle)
        os.kill(self.broker.pid, signal.SIGKILL)
        self.eventually(lambda: not self.broker.connected and not self.other.connected)
        with self.assertRaises(fdbroker.NotConnected):
            self.broker.empty(1)
        self.assertIsInstance(fdbroker.NotConnected(), ConnectionError)
        self.assertEqual(bytes(opened.memoryview()[:4]) + bytes(made.memoryview()), b"minemine")
        self.assertFalse(opened.is_current)


class Handles(BrokerCase):
    def test_handle_when_pickled_and_copied_then_the_same(self):
        handle = self.broker.zeros(100).handle
        for other in (pickle.loads(pickle.dumps(handle)), copy.deepcopy(handle), fdbroker.Handle(bytes(handle))):
            self.assertEqual(other, handle)
            self.assertIsInstance(other, fdbroker.Handle)
        self.assertEqual((len(handle), handle.size, handle.kind, handle.offset, handle.device), (64, 4096, "memfd", 0, 0))
        self.assertIn("memfd", repr(handle))

    def test_handle_when_no_handle_then_bad_handle(self):
        for wrong in (b"", b"x" * 64, bytes(63)):
            with self.assertRaises(fdbroker.BadHandle):
                self.other.open(wrong)
            with self.assertRaises(ValueError):
                fdbroker.Handle(wrong)

    def test_handle_when_forged_then_bad_handle(self):
        handle = bytearray(self.broker.zeros(1).handle)
        handle[24] ^= 1
        with self.assertRaises(fdbroker.BadHandle):
            self.other.open(handle)

    def test_open_when_plain_bytes_then_opened(self):
        made = self.broker.array(b"x")
        for plain in (bytes(made.handle), bytearray(made.handle), memoryview(bytes(made.handle))):
            self.assertEqual(bytes(self.other.open(plain).memoryview()[:1]), b"x")


class Errors(BrokerCase):
    options = {"settings": {"caps.client.allocations": 3}}

    def test_quota_when_full_then_the_text_names_the_cap(self):
        kept = [self.broker.zeros(1) for _ in range(3)]
        with self.assertRaises(fdbroker.NoQuota) as raised:
            self.broker.zeros(1, timeout=0.1)
        self.assertIn("allocations", str(raised.exception))
        kept.pop().close()
        self.broker.zeros(1)

    def test_arguments_when_not_valid_then_value_or_type_error(self):
        for wrong in (
            lambda: self.broker.empty(-1), lambda: self.broker.empty(1, memory="floppy"), lambda: self.broker.empty(1, timeout=-1),
            lambda: self.broker.empty(1, timeout=float("nan")), lambda: self.broker.empty(1, device="gpu"),
            lambda: self.broker.empty(1, device="cuda:x"),
        ):  # fmt: skip
            with self.assertRaises(ValueError):
                wrong()
        for wrong in (lambda: self.broker.empty(1, "string"), lambda: self.broker.empty("1")):
            with self.assertRaises((TypeError, ValueError)):
                wrong()

    def test_connect_when_there_is_no_broker_then_not_connected_with_a_remedy(self):
        with self.assertRaises(fdbroker.NotConnected) as raised:
            fdbroker.connect("/no/such/socket")
        self.assertIn("/no/such/socket", str(raised.exception))

    def test_private_broker_when_a_setting_is_wrong_then_the_daemons_words(self):
        with self.assertRaisesRegex(fdbroker.NotSupported, "no.such.key|no\\.such"):
            fdbroker.private_broker(settings={"no.such.key": 1})

    def test_classes_when_looked_at_then_one_for_each_code_of_the_library(self):
        from fdbroker._abi import lib
        from fdbroker._errors import BY_CODE

        for code, found in BY_CODE.items():
            name = lib.fdbroker_error_name(code).decode()
            self.assertEqual("VersionChanged" if name == "VERSION" else name.title().replace("_", ""), found.__name__)
        unknown = [code for code in range(1, 64) if lib.fdbroker_error_name(code) != b"UNKNOWN" and code not in BY_CODE]
        self.assertEqual(unknown, [])


if __name__ == "__main__":
    unittest.main()
