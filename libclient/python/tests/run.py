#!/usr/bin/env python3
"""Runs the tests of the installed package and ends with `N passed, N failed`. Must never count a test that did not run as passed:
those are named as not run."""

import os
import sys
import unittest

here = os.path.dirname(os.path.abspath(__file__))


class Result(unittest.TextTestResult):
    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1


def main(words):
    import fdbroker

    # Before 3.13 there is always one.
    gil = "" if getattr(sys, "_is_gil_enabled", lambda: True)() else " without a GIL"
    print(f"Python {sys.version.split()[0]}{gil}, {fdbroker.__file__}", flush=True)
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{word}*" for word in words] or None
    suite = loader.discover(here, top_level_dir=here)
    runner = unittest.TextTestRunner(stream=sys.stdout, resultclass=Result, verbosity=1)
    result = runner.run(suite)
    for test, why in result.skipped:
        print(f"not run here: {test.id()}: {why}")
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    print(f"{result.passed} passed, {failed} failed")
    return int(failed > 0 or result.passed == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
