#!/usr/bin/env python3
"""Packs a folder as a wheel (the binary distribution format of packaging.python.org, version 1.0). The same files give the same
bytes. Must never follow a link, nor add a file that RECORD does not name. build.sh is the command.
"""

import base64
import csv
import hashlib
import io
import os
import sys
import zipfile
from pathlib import Path

# Zip knows no earlier time.
TIME = (1980, 1, 1, 0, 0, 0)

METADATA = """\
Metadata-Version: 2.1
Name: fdbroker
Version: {version}
Summary: Share memory between the processes of a node, on the host and on GPUs, without holding its file descriptors
License: MIT OR Apache-2.0
License-File: LICENSE-MIT
License-File: LICENSE-APACHE
Requires-Python: >=3.9
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

{description}"""
WHEEL = "Wheel-Version: 1.0\nGenerator: fdbroker\nRoot-Is-Purelib: false\nTag: {tag}\n"
ENTRY_POINTS = "[console_scripts]\nfdbroker = fdbroker.__main__:main\nfdbrokerd = fdbroker.__main__:daemon\n"


def entry(name, mode):
    info = zipfile.ZipInfo(name, TIME)
    info.external_attr = (0o100000 | mode) << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def main(folder, version, tag, out):
    folder, name = Path(folder), f"fdbroker-{version}"
    about = f"{name}.dist-info"
    files = {}
    for path in sorted((folder / "fdbroker").rglob("*")):
        if path.is_file() and not path.is_symlink():
            mode = 0o755 if os.access(path, os.X_OK) and "bin" in path.parts else 0o644
            files[str(path.relative_to(folder))] = path.read_bytes(), mode
    docs = folder / "docs"
    description = (docs / "python.md").read_text()
    files[f"{about}/METADATA"] = METADATA.format(version=version, description=description).encode(), 0o644
    files[f"{about}/WHEEL"] = WHEEL.format(tag=tag).encode(), 0o644
    files[f"{about}/entry_points.txt"] = ENTRY_POINTS.encode(), 0o644
    for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
        files[f"{about}/licenses/{licence}"] = (docs / licence).read_bytes(), 0o644
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for path, (content, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.writerow([path, f"sha256={digest}", len(content)])
    rows.writerow([f"{about}/RECORD", "", ""])
    files[f"{about}/RECORD"] = record.getvalue().encode(), 0o644
    wheel = Path(out) / f"{name}-{tag}.whl"
    # Renamed when it is whole.
    with zipfile.ZipFile(f"{wheel}.part", "w", compresslevel=9) as archive:
        for path, (content, mode) in files.items():
            archive.writestr(entry(path, mode), content, compresslevel=9)
    os.replace(f"{wheel}.part", wheel)
    print(wheel)


if __name__ == "__main__":
    main(*sys.argv[1:])
