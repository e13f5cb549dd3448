#!/usr/bin/env python3
"""Runs test programs as a plain user whose hard limit is 1,024 fds, so that no test comes to need root or more fds without saying
so: each passes, or names the limit that it needs. Must never pass a test that did not run for another reason.

As root it becomes a user to whom nothing belongs, and shows that user the checkout in its place (a mount namespace): it may be
private. Else it runs them as oneself. Ends with `N passed, N failed`; some 60 seconds."""

import ctypes
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import programs

FDS = 1024
CLONE_NEWNS = 0x20000
# Nobody's on a usual machine.
PLAIN_USER = 29387
# Those that start the daemon and look into it, and those that deal in fds.
WANTED = [("broker", "lib", "fdbrokerd"), ("broker", "test", "it"), ("libclient", "test", "it"),
          ("libclient/scm", "test", "it")]
# Of tests that did not run (tests/common): what is no fault of theirs as such a user.
EXPECTED = re.compile(r"needs a hard limit of|need root|needs root")


def show(folder):
    """Puts the folder in its place for a user who may not enter the folders above it."""
    private = [above for above in reversed(folder.parents) if above.stat().st_mode & 0o1 == 0]
    if not private:
        return
    # os.unshare is newer than Debian 12's Python.
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        sys.exit("tests/plain.py: no mount namespace: " + os.strerror(ctypes.get_errno()))
    aside = tempfile.mkdtemp(prefix="fdbroker-plain-", dir="/tmp")
    for command in (["--make-rprivate", "/"], ["--rbind", folder, aside],
                    ["-t", "tmpfs", "-o", "mode=755", "tmpfs", private[0]]):
        subprocess.run(["mount", *command], check=True)
    folder.mkdir(parents=True)
    subprocess.run(["mount", "--move", aside, folder], check=True)
    os.rmdir(aside)


def run(test, place):
    """Runs a test program: what passed, and what failed or did not run for another reason."""
    log = place / "not-run"
    log.write_text("")
    log.chmod(0o666)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(place), "TMPDIR": str(place), "FDBROKER_NOT_RUN_LOG": str(log)}
    user = {"user": PLAIN_USER, "group": PLAIN_USER, "extra_groups": []} if os.geteuid() == 0 else {}
    ran = subprocess.run([test["path"], "--quiet"], cwd=test["cwd"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, **user)
    text = ran.stdout.decode(errors="replace")
    result = re.search(r"^test result: .*?(\d+) passed; (\d+) failed;", text, re.M)
    passed, failed = (int(result[1]), int(result[2])) if result else (0, 1)
    others = [line for line in log.read_text().splitlines() if not EXPECTED.search(line)]
    if failed or ran.returncode or others:
        print(text)
    print("%s: %s: %d passed, %d failed" % (test["package"], test["name"], passed, failed))
    print("".join("FAILED not run: %s\n" % line for line in others), end="", flush=True)
    return passed - len(others), max(failed, int(ran.returncode != 0)) + len(others)


def main():
    if sys.argv[1:]:
        sys.exit(__doc__)
    tests = [test for test in programs.programs()["tests"] if (test["package"], test["kind"], test["name"]) in WANTED]
    if os.geteuid() == 0:
        show(programs.ROOT)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FDS, FDS))
    with tempfile.TemporaryDirectory(prefix="fdbroker-plain-") as place:
        os.chmod(place, 0o777)
        counts = [run(test, Path(place)) for test in tests]
    passed, failed = (sum(column) for column in zip(*counts))
    print("%d passed, %d failed" % (passed, failed))
    return int(failed > 0 or len(tests) != len(WANTED))


if __name__ == "__main__":
    sys.exit(main())
