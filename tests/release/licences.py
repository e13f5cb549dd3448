#!/usr/bin/env python3
"""Judges every crate that fdbroker is built and tested with: its licence, where it comes from, and that what is banned is not there.
Ends with `N passed, N failed`. Must never let a licence pass that
does not stand here.

It reads `cargo metadata`, with the lock file as it is. It knows no advisories: those are cargo-deny's."""

import json
import re
import subprocess
import sys

# All may be linked into what is given away under MIT or Apache-2.0.
ALLOWED = {"MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Zlib", "0BSD", "CC0-1.0", "Unlicense",
           "Unicode-3.0", "BSL-1.0"}  # fmt: skip
# Weaker copyleft, in programs of tests that are not given away: the crate, and what it is for.
TOLERATED = {"cbindgen": "makes fdbroker.h, and is linked into nothing"}
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
# A crate, and why not.
BANNED = {"openssl-sys": "nothing here speaks TLS", "tokio": "the daemon has one loop, of mio", "async-std": "the daemon has one loop, of mio"}


def is_allowed(expression):
    """Whether an SPDX expression leaves a choice that is allowed."""
    words = re.sub(r"\s*/\s*", " OR ", expression)
    if " OR " in words and "(" not in words:
        return any(is_allowed(part) for part in words.split(" OR "))
    if "(" in words:
        # Such as (MIT OR Apache-2.0) AND Unicode-3.0: each bracket is one choice.
        words = re.sub(r"\(([^()]*)\)", lambda it: "MIT" if is_allowed(it.group(1)) else "refused", words)
        return is_allowed(words)
    return all(part.strip() in ALLOWED for part in words.split(" AND "))


def main():
    if len(sys.argv) > 1:
        print(__doc__)
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    found = subprocess.run(["cargo", "metadata", "--format-version", "1", "--locked"], stdout=subprocess.PIPE, check=True)
    packages = json.loads(found.stdout)["packages"]
    failed = []
    for one in packages:
        name, what = one["name"], f"{one['name']} {one['version']}"
        licence = one["license"] or ""
        if name not in TOLERATED and not is_allowed(licence):
            failed.append(f"{what}: the licence {licence or 'is not said'} is not one that is allowed")
        if one["source"] not in (None, REGISTRY):
            failed.append(f"{what} comes from {one['source']}, not from crates.io")
        if name in BANNED:
            failed.append(f"{what} is banned: {BANNED[name]}")
    for line in failed:
        print(f"FAILED  {line}")
    print(f"{len(packages) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
