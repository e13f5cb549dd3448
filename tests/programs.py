#!/usr/bin/env python3
"""Builds what the tests run - programs, libraries, examples, test programs - once, all in the dev profile, and says where it is.
Must never build one program in a second way: with other features or another profile everything below it is compiled again."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A file that this program wrote before (tests/run.py does it once for all suites): nothing is built then.
VARIABLE = "FDBROKER_TEST_PROGRAMS"
BUILD = ["cargo", "build", "--workspace", "--quiet", "--message-format=json-render-diagnostics"]
# `hostile` measures, so `cargo test` must not start it (test = false), and `--tests` leaves it out.
TARGETS = [["--lib", "--bins", "--examples", "--tests"], ["--test", "hostile"]]

HELP = """usage: tests/programs.py [TEST_PROGRAM]...

Builds the workspace as the tests use it (the dev profile: optimised, all checks on) and prints the folder of its programs and
libraries; examples are in examples/ there, the C library in capi/. With arguments it prints the path of each test program named: e2e, sim, hostile.
With %s=FILE, written by an earlier build, it builds nothing.""" % VARIABLE


def build():
    """Builds, and returns {"folder": DIR, "tests": [{"name", "kind", "package", "path", "cwd"}]}."""
    folder, tests, lines = None, [], []
    for targets in TARGETS:
        ran = subprocess.run(BUILD + targets, cwd=ROOT, stdout=subprocess.PIPE)
        if ran.returncode:
            sys.exit("tests/programs.py: the build failed (%s)" % " ".join(BUILD + targets))
        lines += ran.stdout.splitlines()
    for line in lines:
        artifact = json.loads(line)
        path = artifact.get("executable")
        if artifact["reason"] != "compiler-artifact" or not path:
            continue
        if artifact["profile"]["test"]:
            package = Path(artifact["manifest_path"]).parent
            tests.append({"name": artifact["target"]["name"], "kind": artifact["target"]["kind"][0],
                          "package": str(package.relative_to(ROOT)), "path": path, "cwd": str(package)})
        elif artifact["target"]["kind"] == ["bin"]:
            folder = str(Path(path).parent)
    if subprocess.run(["libclient/capi/link.sh", folder], cwd=ROOT).returncode:
        sys.exit("tests/programs.py: libclient/capi/link.sh failed")
    return {"folder": folder, "tests": tests}


def programs():
    """What an earlier build wrote down, else what a build gives now."""
    written = os.environ.get(VARIABLE)
    return json.loads(Path(written).read_text()) if written else build()


def test_program(built, name):
    found = [test["path"] for test in built["tests"] if test["name"] == name and test["kind"] == "test"]
    if len(found) != 1:
        sys.exit("tests/programs.py: there are %d test programs '%s' (--help explains)" % (len(found), name))
    return found[0]


def main(arguments):
    if arguments[:1] in (["-h"], ["--help"]):
        print(HELP)
        return
    built = programs()
    print("\n".join([test_program(built, name) for name in arguments] or [built["folder"]]))


if __name__ == "__main__":
    main(sys.argv[1:])
