"""The snippets of docs/python.md, and the examples, as a reader runs them. FDBROKER_TEST_DOCUMENTS names the source tree."""

import contextlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import fdbroker
from support import SOON_S, needs_numpy

ROOT = os.environ.get("FDBROKER_TEST_DOCUMENTS")
DEVICE = os.environ.get("FDBROKER_TEST_DEVICE")
needs_root = unittest.skipIf(ROOT is None, "FDBROKER_TEST_DOCUMENTS is not set; the second run of test.sh sets it")


@needs_root
@needs_numpy
class Documents(unittest.TestCase):
    def test_snippets_when_run_in_their_order_then_no_error(self):
        with open(os.path.join(ROOT, "docs/python.md")) as page:
            text = page.read()
        snippets = re.findall(r"^```python( torch)?\n(.*?)^```$", text, re.S | re.M)
        self.assertGreaterEqual(len(snippets), 5)
        has_torch = importlib.util.find_spec("torch") is not None
        names = {}
        # Where the page's broker starts itself.
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        patch = unittest.mock.patch.dict(os.environ, TMPDIR=place.name)
        patch.start()
        self.addCleanup(patch.stop)
        self.addCleanup(subprocess.run, [sys.executable, "-m", "fdbroker", "stop"], stdout=subprocess.DEVNULL, timeout=SOON_S)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for number, (needs, snippet) in enumerate(snippets):
                if needs and not has_torch:
                    continue
                exec(compile(snippet, f"docs/python.md, block {number + 1}", "exec"), names)
        self.assertIn("STALE", out.getvalue())
        names["consumer"].close()
        names["broker"].close()

    def test_docstrings_when_public_then_there(self):
        for name in fdbroker.__all__:
            found = getattr(fdbroker, name)
            self.assertTrue(found.__doc__, name)
            for member, value in vars(found).items() if isinstance(found, type) else ():
                if not member.startswith("_") and callable(value):
                    self.assertTrue(value.__doc__, f"{name}.{member}")


#: Examples that take --device, and a line that each ends with when all is right.
EXAMPLES = {
    "producer_consumer": "two processes summed 499,999,500,000 and doubled it in place",
    "weights": "2 processes used 5 versions of the weights",
    "kv_blocks": "6 requests of 3 blocks went through 8 blocks",
}
#: Those of the host alone.
OF_HOST = {"follow": "a server followed 5 versions of 2 models"}
#: Those of the host that need PyTorch.
OF_TORCH = {"load_weights": "4 processes loaded two versions"}
#: Those that `test.sh frameworks` runs, by hand.
OF_FRAMEWORKS = {"transformers_server"}


class ExampleCase(unittest.TestCase):
    def run_example(self, *command):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=2 * SOON_S)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def run_examples(self, device):
        for name, last in EXAMPLES.items():
            with self.subTest(name):
                out = self.run_example(sys.executable, os.path.join(ROOT, f"libclient/python/examples/{name}.py"), "--device", device)
                self.assertEqual(out.splitlines()[-1], f"{last}: every number is right")


@needs_root
@unittest.skipIf(DEVICE is None, "FDBROKER_TEST_DEVICE names no device of a GPU; tests/gpu/run.sh does")
class ExamplesOnGpu(ExampleCase):
    def test_examples_when_run_on_a_gpu_then_right(self):
        self.run_examples(DEVICE)


@needs_root
@needs_numpy
class Examples(ExampleCase):
    def test_examples_when_run_on_the_host_then_right(self):
        self.run_examples("cpu")
        has_torch = importlib.util.find_spec("torch") is not None
        for name, last in {**OF_HOST, **(OF_TORCH if has_torch else {})}.items():
            with self.subTest(name):
                out = self.run_example(sys.executable, os.path.join(ROOT, f"libclient/python/examples/{name}.py"))
                self.assertEqual(out.splitlines()[-1], f"{last}: every number is right")

    def test_examples_when_listed_then_each_is_run_and_named_in_the_page(self):
        folder = os.path.join(ROOT, "libclient/python/examples")
        found = {name[:-3] for name in os.listdir(folder) if name.endswith(".py")}
        self.assertEqual(found, {*EXAMPLES, *OF_HOST, *OF_TORCH, *OF_FRAMEWORKS, "alltoall"})
        with open(os.path.join(ROOT, "docs/python.md")) as page:
            text = page.read()
        for name in found:
            self.assertIn(f"(../libclient/python/examples/{name}.py)", text)

    def test_alltoall_when_run_by_mpi_then_right(self):
        try:
            import mpi4py  # noqa: F401
        except ImportError:
            self.skipTest("mpi4py is not installed here")
        mpirun = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
        if mpirun is None:
            self.skipTest("mpirun is not installed here")
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        example = os.path.join(ROOT, "libclient/python/examples/alltoall.py")
        out = self.run_example(
            sys.executable, "-m", "fdbroker", "run", "--", mpirun, *root, "--oversubscribe", "-n", "4", sys.executable, example
        )
        self.assertIn("4 ranks opened 16 buffers: every number is right", out)


@needs_root
class Types(unittest.TestCase):
    def test_package_when_installed_then_it_says_that_it_has_types(self):
        self.assertTrue(os.path.exists(os.path.join(os.path.dirname(fdbroker.__file__), "py.typed")))

    def test_package_when_its_interpreter_is_optimised_then_it_works(self):
        with tempfile.TemporaryDirectory() as folder:
            code = "import fdbroker; b = fdbroker.private_broker(); a = b.array(b'ok'); print(bytes(b.open(a.handle).memoryview()[:2]))"
            done = subprocess.run([sys.executable, "-OO", "-c", code], cwd=folder, stdout=subprocess.PIPE, timeout=SOON_S)
        self.assertEqual((done.returncode, done.stdout), (0, b"b'ok'\n"))


if __name__ == "__main__":
    unittest.main()
