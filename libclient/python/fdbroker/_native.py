"""Where the library and the programs are: in the wheel, or where FDBROKER_LIBRARY and FDBROKER_BIN_DIR say.

Must never load a library that was not named or shipped: another version may be installed on the system.
"""

import ctypes
import os
from pathlib import Path

#: What the wheel brings: ``bin/`` and ``lib/`` as an installed fdbroker has them.
SHIPPED = Path(__file__).resolve().parent / "native"


def library_path() -> str:
    """The path of libfdbroker.so.0."""
    return os.environ.get("FDBROKER_LIBRARY") or str(SHIPPED / "lib" / "libfdbroker.so.0")


def program_path(name: str) -> str:
    """The path of ``fdbroker`` or ``fdbrokerd``."""
    folder = os.environ.get("FDBROKER_BIN_DIR")
    return str((Path(folder) if folder else SHIPPED / "bin") / name)


def load() -> ctypes.CDLL:
    """The library, loaded; ImportError, with what to do, when it is not there."""
    path = library_path()
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"fdbroker's library cannot be loaded: {error}; install the wheel (pip install fdbroker), or name the library in "
            "FDBROKER_LIBRARY"
        ) from error
