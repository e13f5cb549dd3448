"""GPU memory: without a driver, and with the tests' stand-in for CUDA (FDBROKER_TEST_CUDA_STUB names its folder; test.sh builds it).

The stand-in shows that this package calls the library rightly; nothing here has a GPU."""

import os
import tempfile
import unittest

import fdbroker
from support import PRELUDE, BrokerCase, StandInCase, script


class Absent(BrokerCase):
    def test_gpu_memory_when_there_is_no_driver_then_not_supported_and_says_why(self):
        with tempfile.TemporaryDirectory() as empty:
            # A file of the library's name hides a driver that this machine may have.
            for name in ("libcuda.so.1", "libze_loader.so.1"):
                open(os.path.join(empty, name), "w").close()
            status, out, err = script(
                """
                import fdbroker, sys
                with fdbroker.connect(sys.argv[1]) as broker:
                    for device in ("cuda", "level-zero"):
                        for call in (
                            lambda: broker.empty(4, device=device + ":0"), lambda: fdbroker.device_count(device),
                            lambda: broker.handle_of(4096, device=device + ":0"),
                        ):
                            try:
                                call()
                            except fdbroker.NotSupported as error:
                                assert device in str(error), error
                            else:
                                print("no error")
                    broker.empty(4)
                print("end")
                """,
                self.broker.socket,
                LD_LIBRARY_PATH=empty,
            )
        self.assertEqual((status, out, err), (0, "end\n", ""))

    def test_object_when_the_library_says_its_device_then_labelled_with_its_driver_and_number(self):
        from fdbroker import _objects

        for kind, driver, code in ((1, "level-zero", 14), (2, "cuda", 2)):
            taken = _objects._Object(device_ptr=1 << 40, size_bytes=8, version=3, kind=kind, device=5)
            got = _objects._object(self.broker._live(), "named", False, taken, object())
            self.assertEqual((got.device, got.__dlpack_device__(), got.pointer), (f"{driver}:5", (code, 5), 1 << 40))

    def test_device_when_unknown_then_value_error(self):
        with self.assertRaises(ValueError):
            fdbroker.device_count("tpu")
        with self.assertRaises(ValueError):
            self.broker.open(self.broker.zeros(1).handle, device="cuda:0")


class StandIn(StandInCase):
    def test_memory_when_opened_then_the_owners_bytes_on_its_device(self):
        self.run_script("""
enter()
with fdbroker.private_broker() as broker, fdbroker.connect(broker.socket) as other:
    made = broker.empty((256, 16), "float32", device="cuda:0")
    assert (made.device, made.__dlpack_device__(), made.nbytes) == ("cuda:0", (2, 0), 16384)
    put(made.pointer, b"from the owner")
    opened = other.open(made.handle, (256, 16), "float32", writable=True)
    assert opened.device == "cuda:0" and opened.pointer != made.pointer
    assert get(opened.pointer, 14) == b"from the owner"
    put(opened.pointer, b"back")
    assert get(made.pointer, 4) == b"back"
    for memory in (made, opened):
        for use in (memory.memoryview, memory.numpy):
            try:
                use()
            except (TypeError, ImportError):
                continue
            print("seen by the CPU")
    assert broker.handle_of(made.pointer + 100, device="cuda:0").offset == 100
    again = other.open(made.handle)
    assert again.pointer != 0 and other.stats()["pinned"] >= 1
    again.close(); opened.close(); made.close()
    broker.flush()
    assert other.stats()["pinned"] == 0 and other.empty_cache() >= 0
gc.collect()
print("end")
""")

    def test_memory_when_retired_then_waited_for_and_the_owners_still(self):
        self.run_script("""
enter()
with fdbroker.private_broker(max_fds=64) as broker, fdbroker.connect(broker.socket) as other:
    made = broker.empty(8, device="cuda:0")
    put(made.pointer, b"original")
    opened = other.open(made.handle)
    try:
        made.retire(timeout=0)
    except fdbroker.TimedOut as error:
        assert f"pid {os.getpid()}" in str(error), error
    opened.close()
    made.retire(timeout=60)
    put(made.pointer, b"replaced")
    assert get(made.pointer, 8) == b"replaced"
    made.close()
print("end")
""")

    def test_interfaces_when_asked_then_pointer_shape_and_type(self):
        self.run_script("""
enter()
with fdbroker.private_broker() as broker:
    made = broker.empty((3, 5), "int16", device="cuda:0")
    about = made.__cuda_array_interface__
    assert about["data"] == (made.pointer, False) and about["shape"] == (3, 5) and about["typestr"] == "<i2", about
    pointer = made.pointer
    put(pointer, b"lent")
    # Who has the interface has this object alone: the memory stays as long as it does, however often it is closed.
    made.close()
    made.close()
    assert get(pointer, 4) == b"lent" and broker.stats()["registrations"] == 1
    del made
    other = broker.empty((3, 5), "int16", device="cuda:0")
    capsule = other.__dlpack__(stream=2, max_version=(1, 0))
    other.close()
    assert broker.stats()["registrations"] == 1
    del capsule, other
    gc.collect()
    assert broker.stats()["registrations"] == 0
    assert not hasattr(broker.zeros(1), "__cuda_array_interface__")
print("end")
""")

    def test_objects_when_made_on_a_gpu_then_got_on_that_gpu(self):
        self.run_script("""
import asyncio
with fdbroker.private_broker() as broker, fdbroker.connect(broker.socket) as other:
    for number in (0, 1):
        device = f"cuda:{number}"
        with broker.create({"a": (6, "uint8"), "b": ((2, 2), "float32")}, device=device, replace=True) as group:
            assert group["a"].device == device and group["b"].pointer != group["a"].pointer
            group.write("a", b"gpu %d!" % number)
            capsule = group["b"].__dlpack__()
            try:
                group.seal()
            except fdbroker.SealedBusy:
                del capsule
            version = group.seal(stream=0)
        enter(number)
        a, b = other.get_many(["a", "b"])
        assert (a.device, b.device, a.__dlpack_device__(), a.version) == (device, device, (2, number), version)
        assert get(a.pointer, 6) == b"gpu %d!" % number and not a.writable
        assert a.__cuda_array_interface__["data"] == (a.pointer, True) and b.shape == (2, 2)
        there = other.get("a", device="cuda:1")
        assert there.device == "cuda:1" and get(there.pointer, 6, 1) == b"gpu %d!" % number
        try:
            other.get("a", device="cuda:7")
        except fdbroker.NotSupported:
            pass
        else:
            print("no error")
        a.close(); b.close(); there.close()
    async def make():
        group = await broker.acreate({"awaited": (6, "uint8")}, device="cuda:1")
        group.write("awaited", b"async!")
        return await group.aseal(stream=0)
    version = asyncio.run(make())
    awaited = other.get("awaited")
    assert (awaited.device, awaited.version, get(awaited.pointer, 6, 1)) == ("cuda:1", version, b"async!")
    awaited.close()
    try:
        broker.create({"c": (1, "uint8")}, device="level-zero:0")
    except fdbroker.NotSupported:
        print("end")
""", FDBROKER_CUDA_STUB_DEVICES="2")  # fmt: skip

    def test_child_when_forked_then_the_parents_memory_stays(self):
        self.run_script("""
enter()
import warnings
# From 3.12 on Python warns of fork in a process with a thread, which the library has.
warnings.simplefilter("ignore", DeprecationWarning)
broker = fdbroker.private_broker()
made = broker.empty(100, device="cuda:0")
put(made.pointer, b"stays")
child = os.fork()
if child == 0:
    made.close(); broker.close(); gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert get(made.pointer, 5) == b"stays"
made.close(); broker.close()
print("end")
""")

    def test_exit_when_gpu_memory_is_still_open_then_clean(self):
        self.run_script("""
enter()
broker = fdbroker.private_broker()
made = broker.empty(100, device="cuda:0")
opened = broker.open(made.handle)
print("end")
""")


#: A process that sees some GPUs alone opens what the owner's lines name, and says where: HANDLE [DEVICE] -> DEVICE BYTES, or the error.
#: A line without a handle gets the object "a".
ENGINE = PRELUDE + """
enter()
with fdbroker.connect(sys.argv[1]) as broker:
    for line in sys.stdin:
        handle, _, device = line.rstrip("\\n").partition(" ")
        try:
            with broker.open(bytes.fromhex(handle), device=device or None) if handle else broker.get("a") as memory:
                print(memory.device, get(memory.pointer, 5, int(memory.device[5:])).decode())
        except (fdbroker.NotSupported, ValueError) as error:
            print(type(error).__name__, error)
"""
OWNER = """
import subprocess
broker = fdbroker.private_broker()
made = []
for number in range(fdbroker.device_count("cuda")):
    enter(number)
    made.append(broker.empty(100, device=f"cuda:{number}"))
    put(made[number].pointer, b"gpu %d" % number)
def engine(visible, *lines, **environment):
    seen = {**os.environ, "CUDA_VISIBLE_DEVICES": visible, **environment}
    text = "".join(f"{'' if at is None else bytes(made[at].handle).hex()} {device}\\n" for at, device in lines)
    done = subprocess.run([sys.executable, "-c", ENGINE, broker.socket], input=text, env=seen, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    return done.stdout.splitlines()
"""


class SeveralGpus(StandInCase):
    def run_owner(self, text, **environment):
        environment.setdefault("FDBROKER_CUDA_STUB_DEVICES", "2")
        self.run_script(f"import sys\nENGINE = {ENGINE!r}\n" + OWNER + text, **environment)

    def test_memory_when_the_opener_counts_gpus_otherwise_then_on_its_owners_gpu(self):
        self.run_owner("""
for visible, devices in (("0,1", "01"), ("1,0", "10"), ("GPU-fdb01,GPU-fdb00", "10")):
    found = engine(visible, (0, ""), (1, ""))
    assert found == [f"cuda:{devices[0]} gpu 0", f"cuda:{devices[1]} gpu 1"], (visible, found)
print("end")
""")

    def test_memory_when_its_gpu_is_hidden_then_refused_by_name_unless_a_device_is_said(self):
        self.run_owner("""
hidden, seen = engine("1", (0, ""), (1, ""))
assert seen == "cuda:0 gpu 1", seen
for words in ("NotSupported", "GPU-fdb0005a-5a5a", "0 is GPU-fdb0115a", "CUDA_VISIBLE_DEVICES=1"):
    assert words in hidden, (words, hidden)
assert engine("1", (0, "cuda:0"), (1, "cuda:0")) == ["cuda:0 gpu 0", "cuda:0 gpu 1"]
for missing in engine("1", (0, "cuda:1"), (1, "cuda:7")):
    assert missing.startswith("NotSupported") and "no device" in missing, missing
for wrong in engine("1", (1, "cpu"), (1, "level-zero:0")):
    assert wrong.startswith("ValueError"), wrong
print("end")
""")

    def test_device_when_said_then_obeyed_or_refused_and_never_dropped(self):
        self.run_owner("""
for asked in ("cuda:0", "cuda:1"):
    assert engine("0,1", (0, asked), (1, asked)) == [f"{asked} gpu 0", f"{asked} gpu 1"]
# One connection opens each allocation once: what is open on another device is not moved there in silence.
with fdbroker.connect(broker.socket) as one, fdbroker.connect(broker.socket) as two:
    here = one.open(made[1].handle)
    assert here.device == "cuda:1"
    try:
        one.open(made[1].handle, device="cuda:0")
    except fdbroker.NotSupported as error:
        assert "cuda:1" in str(error) and "cuda:0" in str(error), error
    else:
        print("no error")
    there = two.open(made[1].handle, device="cuda:0")
    assert there.device == "cuda:0" and get(there.pointer, 5, 0) == b"gpu 1"
    here.close(); there.close()
print("end")
""")

    def test_object_when_its_gpu_is_hidden_then_refused_by_name_and_else_got_on_it(self):
        self.run_owner("""
with broker.create({"a": (5, "uint8")}, device="cuda:1") as group:
    group.write("a", b"gpu 1")
    group.seal()
assert engine("1", (None, "")) == ["cuda:0 gpu 1"]
assert engine("1,0", (None, "")) == ["cuda:0 gpu 1"]
(hidden,) = engine("0", (None, ""))
assert "NotSupported" in hidden and "GPU-fdb0115a" in hidden, hidden
print("end")
""")

    def test_instances_when_divided_anew_between_two_processes_then_another_one_is_not_taken_for_it(self):
        self.run_owner("""
first = "MIG-fdb10001-5a5a-5a5a-5a5a-5a5a5a5a5a5a"
second = "MIG-fdb10002-5a5a-5a5a-5a5a-5a5a5a5a5a5a"
assert engine(first, (0, "")) == ["cuda:0 gpu 0"]
(other,) = engine(second, (0, ""))
assert "NotSupported" in other and first in other and second in other, other
(whole,) = engine("0", (0, ""), FDBROKER_CUDA_STUB_MIG="0,0")
assert "NotSupported" in whole and first in whole and "GPU-fdb0005a" in whole, whole
print("end")
""", FDBROKER_CUDA_STUB_MIG="2,0")  # fmt: skip



if __name__ == "__main__":
    unittest.main()
