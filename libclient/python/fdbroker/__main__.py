"""``python -m fdbroker``, and the commands ``fdbroker`` and ``fdbrokerd`` of the wheel: the program itself, in this process's place.

Must never start a second process: signals and the exit status are the program's.
"""

import os
import sys

from . import _native


def main() -> None:
    _become("fdbroker")


def daemon() -> None:
    _become("fdbrokerd")


def _become(name: str) -> None:
    program = _native.program_path(name)
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: {program} cannot be run: {error}; install the wheel again, or name a directory in FDBROKER_BIN_DIR")


if __name__ == "__main__":
    main()
