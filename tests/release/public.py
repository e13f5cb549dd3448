#!/usr/bin/env python3
"""The public items of the library's crate, and the types of other crates that they show, beside the list that is checked in: a change of
either is seen in review. Ends with `N passed, N failed`. Must never pass an item that the list does not have.

Reads rustdoc's JSON, an unstable form (RUSTC_BOOTSTRAP=1), for which no tool has to be built. --update writes the list anew."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIST = HERE / "public.txt"
CRATES = ("fdbroker-client", "fdbroker-protocol")
# What every program has.
STANDARD = {"std", "core", "alloc"}
# The form that this program was written for.
FORMAT = 57


def described(package):
    """rustdoc's JSON of a crate."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "public"
    command = ["cargo", "rustdoc", "--quiet", "--target-dir", target, "-p", package, "--lib", "--", "-Z", "unstable-options", "--output-format", "json"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "RUSTC_BOOTSTRAP": "1"}, check=True)
    found = json.loads((target / "doc" / f"{package.replace('-', '_')}.json").read_text())
    if found["format_version"] != FORMAT:
        sys.exit(f"public.py: rustdoc's JSON is of form {found['format_version']}, and this program knows {FORMAT}; look at what changed")
    return found


class Crate:
    def __init__(self, package, others):
        self.name, self.described, self.others = package.replace("-", "_"), described(package), others
        self.lines, self.foreign, self.seen = set(), set(), set()

    def item(self, number):
        return self.described["index"].get(str(number))

    def walk(self):
        self.module(self.described["root"], self.name)

    def module(self, number, path):
        for child in self.item(number)["inner"]["module"]["items"]:
            item = self.item(child)
            if item and item["visibility"] == "public" and not is_hidden(item):
                self.named(item, path)

    def named(self, item, path):
        (kind, inner), name = next(iter(item["inner"].items())), item["name"]
        if kind == "use":
            target = self.item(inner["id"])
            if target is None:
                self.of_another(inner, path)
            elif inner["is_glob"]:
                self.module(inner["id"], path)
            else:
                self.named({**target, "name": inner["name"]}, path)
        elif kind == "module":
            self.module(item["id"], f"{path}::{name}")
        elif (item["id"], path) not in self.seen:
            self.seen.add((item["id"], path))
            self.entry(item, kind, inner, f"{path}::{name}")

    def of_another(self, use, path):
        """An item of another of our crates under a name of this one."""
        place = self.described["paths"].get(str(use["id"]))
        crate = self.others.get(place["path"][0]) if place else None
        found = crate and crate.item_at(place["path"])
        if found is None:
            self.foreign.add(f"{path}::{use['name']} is {use['source']}")
            return
        (kind, inner), was = next(iter(found["inner"].items())), crate.lines
        crate.lines = self.lines
        crate.entry(found, kind, inner, f"{path}::{use['name']}")
        crate.lines = was
        self.foreign |= crate.foreign

    def item_at(self, path):
        for number, place in self.described["paths"].items():
            if place["crate_id"] == 0 and place["path"] == path:
                return self.item(number)
        return None

    def entry(self, item, kind, inner, path):
        self.lines.add(f"{path} ({kind}{mark_of(item)})")
        self.look(inner, path)
        for child in fields_of(kind, inner) + list(inner.get("items", []) if kind == "trait" else []):
            one = self.item(child)
            if one and one["visibility"] in ("public", "default") and not is_hidden(one):
                what, own = next(iter(one["inner"].items()))
                self.lines.add(f"{path}::{one['name']} ({what.replace('struct_field', 'field')}{mark_of(one)})")
                self.look(own, f"{path}::{one['name']}")
                for field in map(self.item, fields_of(what, own) if what == "variant" else []):
                    self.lines.add(f"{path}::{one['name']}::{field['name']} (field)")
                    self.look(field["inner"], f"{path}::{one['name']}::{field['name']}")
        for number in inner.get("impls", []) if isinstance(inner, dict) else []:
            self.implementation(self.item(number), path)

    def implementation(self, item, path):
        inner = item["inner"]["impl"]
        if inner["is_synthetic"] or inner["blanket_impl"]:
            return
        if inner["trait"] is not None:
            if not is_hidden(item):
                self.look(inner["trait"], f"{path} implements it", is_path=True)
            return
        for child in inner["items"]:
            one = self.item(child)
            if one and one["visibility"] == "public" and not is_hidden(one):
                what, own = next(iter(one["inner"].items()))
                self.lines.add(f"{path}::{one['name']} ({what})")
                self.look(own, f"{path}::{one['name']}")

    def look(self, part, where, is_path=False):
        """Each type or trait of another crate that a signature names."""
        if isinstance(part, dict):
            if is_path or "resolved_path" in part or set(part) >= {"path", "id", "args"}:
                self.named_type(part.get("resolved_path", part), where)
            for key, value in part.items():
                if key not in ("impls", "items", "variants", "fields"):
                    self.look(value, where)
        elif isinstance(part, list):
            for value in part:
                self.look(value, where)

    def named_type(self, path, where):
        place = self.described["paths"].get(str(path.get("id")))
        if not place or place["crate_id"] == 0:
            return
        crate = place["path"][0]
        if crate not in STANDARD and crate not in self.others and crate != self.name:
            self.foreign.add(f"{where.removesuffix(' implements it')}: {'::'.join(place['path'])}")


def mark_of(item):
    return " non_exhaustive" if any("non_exhaustive" in str(attribute) for attribute in item["attrs"]) else ""


def fields_of(kind, inner):
    if kind in ("struct", "variant"):
        shape = inner["kind"]
        named = (shape.get("plain") or shape.get("struct")) if isinstance(shape, dict) else None
        return list(named["fields"]) if named else []
    return list(inner["variants"]) if kind == "enum" else []


def is_hidden(item):
    return any("doc(hidden)" in str(attribute) or "#[doc(hidden)]" in str(attribute) for attribute in item["attrs"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help=f"write {LIST.relative_to(ROOT)}")
    options = parser.parse_args()
    protocol = Crate(CRATES[1], {})
    client = Crate(CRATES[0], {protocol.name: protocol})
    client.walk()
    now = sorted(client.lines) + [f"foreign: {line}" for line in sorted(client.foreign)]
    if options.update:
        LIST.write_text("\n".join(now) + "\n")
    before = LIST.read_text().splitlines()
    changes = [f"gone: {line}" for line in before if line not in set(now)] + [f"new: {line}" for line in now if line not in set(before)]
    print(*(f"FAILED  {line}" for line in changes), sep="\n", end="\n" if changes else "")
    print(f"{len(now) - sum(line.startswith('new') for line in changes)} passed, {len(changes)} failed")
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())
