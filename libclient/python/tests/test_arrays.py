"""Memory in other libraries: capsules of DLPack as dlpack.h says, and JAX and CuPy where they are installed."""

import ctypes
import gc
import importlib.util
import os
import unittest
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

import fdbroker
from fdbroker import _dlpack
from support import BrokerCase, script

HAS_GPU = os.path.exists("/dev/nvidiactl")


def needs(name):
    return unittest.skipIf(importlib.util.find_spec(name) is None, f"{name} is not installed here")


# --- a consumer that has dlpack.h and nothing else ---


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8), ("bits", c_uint8),
        ("lanes", c_uint16), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64),
    ]  # fmt: skip


class Managed(Structure):
    _fields_ = [("tensor", Tensor), ("context", c_void_p), ("deleter", ctypes.CFUNCTYPE(None, c_void_p))]


class Versioned(Structure):
    _fields_ = [
        ("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", ctypes.CFUNCTYPE(None, c_void_p)), ("flags", c_uint64),
        ("tensor", Tensor),
    ]  # fmt: skip


get_pointer = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
get_name = ctypes.PYFUNCTYPE(c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
# A capsule keeps the pointer to its name.
USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


def take(capsule):
    """What a consumer takes: the struct, which it must end by its deleter."""
    name = get_name(capsule)
    kind = Versioned if name == b"dltensor_versioned" else Managed
    pointer = get_pointer(capsule, name)
    set_name(capsule, USED[name])
    return kind.from_address(pointer), pointer


class Capsules(BrokerCase):
    def test_capsule_when_taken_then_as_dlpack_says_and_kept_until_its_deleter(self):
        made = self.broker.zeros((2, 3), "int16")
        address = made.pointer
        for version, kind in ((None, Managed), ((0, 8), Managed), ((1, 0), Versioned), ((2, 1), Versioned)):
            before = _dlpack.lent()
            capsule = made.__dlpack__(max_version=version, stream=None, dl_device=None, copy=None)
            managed, pointer = take(capsule)
            del capsule
            gc.collect()
            tensor = managed.tensor
            self.assertIs(type(managed), kind)
            if kind is Versioned:
                self.assertEqual((managed.major, managed.flags), (1, 0))
            self.assertEqual((tensor.data, tensor.byte_offset, tensor.device_type, tensor.device_id), (address, 0, 1, 0))
            self.assertEqual((tensor.ndim, tensor.shape[:2], tensor.strides[:2]), (2, [2, 3], [3, 1]))
            # A signed integer of 16 bits.
            self.assertEqual((tensor.code, tensor.bits, tensor.lanes), (0, 16, 1))
            self.assertEqual(_dlpack.lent(), before + 1)
            managed.deleter(pointer)
            self.assertEqual(_dlpack.lent(), before)

    def test_capsule_when_a_consumer_has_it_then_the_memory_stays_after_close(self):
        made = self.broker.array(b"lent")
        managed, pointer = take(made.__dlpack__())
        data = managed.tensor.data
        made.close()
        del made
        gc.collect()
        self.assertEqual((ctypes.string_at(data, 4), self.broker.stats()["registrations"]), (b"lent", 1))
        managed.deleter(pointer)
        self.assertEqual(self.broker.stats()["registrations"], 0)

    def test_memory_for_reading_when_taken_then_marked_or_refused(self):
        self.broker.put("read", b"bytes")
        got = self.other.get("read")
        managed, pointer = take(got.__dlpack__(max_version=(1, 0)))
        # DLPACK_FLAG_BITMASK_READ_ONLY
        self.assertEqual(managed.flags & 1, 1)
        managed.deleter(pointer)
        with self.assertRaises(BufferError):
            got.__dlpack__()
        managed, pointer = take(got.unmarked().__dlpack__(stream=1, max_version=(1, 0)))
        self.assertEqual((type(managed), got.unmarked().__dlpack_device__()), (Managed, (1, 0)))
        self.assertEqual(ctypes.string_at(managed.tensor.data, 5), b"bytes")
        managed.deleter(pointer)
        unmarked = got.unmarked()
        got.close()
        with self.assertRaises(fdbroker.Closed):
            unmarked.__dlpack__()

    def test_type_when_of_each_kind_then_its_code_and_bits(self):
        # DLDataTypeCode: int 0, uint 1, float 2, bfloat 4, complex 5, bool 6.
        for name, code, bits in (
            ("bool", 6, 8), ("uint8", 1, 8), ("int64", 0, 64), ("float16", 2, 16), ("bfloat16", 4, 16), ("complex64", 5, 64),
        ):  # fmt: skip
            managed, pointer = take(self.broker.zeros(1, name).__dlpack__())
            self.assertEqual((managed.tensor.code, managed.tensor.bits), (code, bits), name)
            managed.deleter(pointer)


# --- libraries; each in a process of its own, since they take what they find ---


class Libraries(BrokerCase):
    def run_script(self, text, device):
        # JAX takes most of a GPU's memory otherwise.
        environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_PLATFORMS": "cpu" if device == "cpu" else "cuda"}
        status, out, _ = done = script(text, self.broker.socket, device, **environment)
        self.assertEqual((status, out), (0, "end\n"), done)

    JAX = """
        import sys, gc, time, fdbroker, fdbroker._dlpack, jax.numpy as jnp
        broker, device = fdbroker.connect(sys.argv[1]), sys.argv[2]
        with broker.create({"jax": ((2, 3), "float32")}, device=device) as group:
            group.write("jax", b"\\0\\0\\x80\\x3f" * 6)
            group.seal()
        got = broker.get("jax")
        array = jnp.from_dlpack(got.unmarked())
        assert array.unsafe_buffer_pointer() == got.pointer and array.shape == (2, 3), array
        assert {one.platform for one in array.devices()} == {"cpu" if device == "cpu" else "gpu"}
        got.close()
        broker.delete("jax")
        assert float(array.sum()) == 6
        made = broker.empty(4, "int32", device=device)
        assert jnp.from_dlpack(made).unsafe_buffer_pointer() == made.pointer
        if device == "cpu":
            broker.put("back", jnp.arange(5))
            assert bytes(broker.get("back").memoryview())[4] == 1
        del array
        gc.collect()
        # A thread of JAX gives a GPU's memory back.
        until = time.monotonic() + 30
        while fdbroker._dlpack.lent() and time.monotonic() < until:
            time.sleep(0.01)
        assert fdbroker._dlpack.lent() == 0, fdbroker._dlpack.lent()
        print("end")
        """

    @needs("jax")
    def test_jax_when_it_takes_an_object_then_the_same_bytes(self):
        self.run_script(self.JAX, "cpu")

    @needs("jax")
    @unittest.skipUnless(HAS_GPU, "no GPU here")
    def test_jax_when_it_takes_gpu_memory_then_on_that_gpu(self):
        self.run_script(self.JAX, "cuda:0")

    @needs("cupy")
    @unittest.skipUnless(HAS_GPU, "no GPU here")
    def test_cupy_when_it_takes_gpu_memory_then_the_same_bytes(self):
        self.run_script("""
            import sys, gc, fdbroker, fdbroker._dlpack, cupy
            broker, device = fdbroker.connect(sys.argv[1]), sys.argv[2]
            made = broker.empty((2, 3), "float32", device=device)
            array = cupy.asarray(made)
            assert (array.data.ptr, array.shape, array.dtype) == (made.pointer, (2, 3), "float32")
            array[...] = 1
            cupy.cuda.Device().synchronize()
            opened = broker.open(made.handle, (2, 3), "float32", writable=True)
            taken = cupy.from_dlpack(opened)
            assert taken.data.ptr == opened.pointer and float(taken.sum()) == 6
            with broker.create({"cupy": ((3,), "int64")}, device=device) as group:
                view = cupy.from_dlpack(group["cupy"])
                view[...] = cupy.arange(3)
                cupy.cuda.Device().synchronize()
                del view
                group.seal()
            got = broker.get("cupy")
            for seen in (cupy.asarray(got), cupy.from_dlpack(got.unmarked())):
                assert seen.data.ptr == got.pointer and int(seen.sum()) == 3
            del taken, seen
            gc.collect()
            assert fdbroker._dlpack.lent() == 0, fdbroker._dlpack.lent()
            print("end")
            """, "cuda:0")  # fmt: skip


if __name__ == "__main__":
    unittest.main()
