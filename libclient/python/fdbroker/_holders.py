"""Who has memory open, in words: asked of the program ``fdbroker``. Must never change anything, nor raise: it completes an error."""

import json
import os
import subprocess
from typing import Any, Dict, List

from . import _abi, _native
from ._context import Context
from ._handle import Handle

#: Seconds that the program has.
_ANSWER_S = 5.0
#: Holders that are named.
_NAMED = 8


def holders(context: Context, handle: Handle) -> str:
    """`` Now: NAME (pid N), ...``; empty where it cannot be found out."""
    info = handle._info()
    # Of the broker of this connection, whatever this process was told of another one.
    environment = {name: value for name, value in os.environ.items() if name != "FDBROKER_ADMIN_SOCKET"}
    environment["FDBROKER_SOCKET"] = os.fsdecode(_abi.lib.fdbroker_socket(context.pointer))
    command = [_native.program_path("fdbroker"), "holders", f"{info.slot}.{info.generation}", "--json"]
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_ANSWER_S, check=True)
        found: List[Dict[str, Any]] = json.loads(done.stdout)["holders"]
    except (OSError, ValueError, KeyError, subprocess.SubprocessError):
        return ""
    named = [f"{one['name']} (pid {one['pid']})" for one in found[:_NAMED]]
    more = [f"{len(found) - _NAMED} more"] * (len(found) > _NAMED)
    return f". Now: {', '.join(named + more)}" if named else ""


__all__ = ["holders"]
