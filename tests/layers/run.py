#!/usr/bin/env python3
"""Checks that the crates and their modules use one another in one direction only.

layers.txt beside this file says what is meant. A crate with a list of layers: a module uses only modules of lower lines.
In the folders of such a crate: no circles. A type whose methods stand in many files has floors: a method calls only methods
of its own floor and of lower ones, which `use` lines do not show. Ends with `N passed, N failed`; each crate is one test. Code of `mod tests` is
left out: a test may use everything. Must never need anything but Python 3.
"""

import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else HERE.parent.parent
IDENTIFIER = r"[A-Za-z_]\w*"
COMMENT_OR_TEXT = re.compile(
    r'//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|"(?:\\.|[^"\\])*"|\'(?:\\.[^\']*|[^\'\\])\'', re.S)
TEST_FILE = re.compile(r"#\[cfg\(test\)\]\s*(?:pub\s+)?mod\s+(\w+);")
USE = re.compile(r"(\bpub(?:\([^)]*\))?\s+)?\buse\s+([^;]+);")
PATH = re.compile(r"(?<![\w:$])(?:crate|self|super|%s)(?:\s*::\s*%s)+" % (IDENTIFIER, IDENTIFIER))


def read_layers(path):
    """The sections of layers.txt: {heading: [words of a line, ...]}."""
    sections, lines = {}, None
    for line in path.read_text().splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("["):
            lines = sections.setdefault(line.strip("[]"), [])
        elif line:
            lines.append(line.replace(":", " ").split())
    return sections


def code_of(path):
    """A file's code, each line in its place: without comments, texts and the tests at its end."""
    blank = lambda found: re.sub(r"[^\n]", " ", found.group())
    code = COMMENT_OR_TEXT.sub(blank, path.read_text())
    return re.split(r"#\[cfg\(test\)\]\s*(?:pub\s+)?mod\s+\w+\s*\{", code)[0]


def leaves(tree, before=()):
    """The paths that a use tree names: `a::{b, c::d as e}` names a::b and a::c::d."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    path = before + tuple(part.strip() for part in head.split("::") if part.strip())
    if not brace:
        last = path[-1].split()[0] if path else ""
        return [path[:-1] + (last,)] if last not in ("", "self") else [path[:-1]]
    parts, depth, start = [], 0, 0
    inside = rest.rstrip()[:-1]
    for at, character in enumerate(inside + ","):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(inside[start:at])
            start = at + 1
    return [leaf for part in parts if part.strip() for leaf in leaves(part, path)]


class Crate:
    """The modules of one crate, and which of them use which."""

    def __init__(self, folder, root=ROOT):
        self.root, self.folder = root, root / folder
        self.files = {}  # module, as a tuple of names: its file
        for path in sorted(self.folder.rglob("*.rs")):
            names = list(path.relative_to(self.folder).with_suffix("").parts)
            if names[-1] == "mod" or names in (["main"], ["lib"]):
                names.pop()
            # Of a crate with a library and a program, the library.
            self.files.setdefault(tuple(names), path)
        for module, path in list(self.files.items()):
            for test in TEST_FILE.findall(path.read_text()):
                for below in [it for it in self.files if it[:len(module) + 1] == module + (test,)]:
                    del self.files[below]
        self.code = {module: code_of(path) for module, path in self.files.items()}
        self.reexports = {module: self.reexports_of(module) for module in self.files}

    def absolute(self, module, path):
        """A path as seen from `module`, from the crate's root on; None: of another crate."""
        if path[0] == "crate":
            return path[1:]
        at = list(module)
        if path[0] in ("self", "super"):
            path = list(path)
            while path and path[0] in ("self", "super"):
                if path.pop(0) == "super" and at:
                    at.pop()
            return tuple(at + path)
        return module + path if module + path[:1] in self.files else None

    def reexports_of(self, module):
        """The names that a module hands on, and the paths they come from."""
        found = {}
        for use in USE.finditer(self.code[module]):
            if use.group(1):
                for leaf in leaves(use.group(2)):
                    path = self.absolute(module, leaf)
                    if path:
                        found[leaf[-1]] = path
        return found

    def module_of(self, path):
        """The module in which what `path` names is written, whoever hands it on."""
        for _ in range(8):
            module = path
            while module not in self.files:
                module = module[:-1]
            onward = self.reexports[module].get(path[len(module)]) if len(path) > len(module) else None
            if onward is None or onward == path:
                return module
            path = onward + path[len(module) + 1:]
        return module

    def uses(self):
        """(module, line, module it uses) of each path in the code."""
        for module, code in self.code.items():
            found = []
            for use in USE.finditer(code):
                if not use.group(1):
                    found += [(use.start(2), leaf) for leaf in leaves(use.group(2))]
            rest = USE.sub(lambda use: re.sub(r"[^\n]", " ", use.group()), code)
            for path in PATH.finditer(rest):
                found.append((path.start(), tuple(re.findall(IDENTIFIER, path.group()))))
            for at, leaf in found:
                path = self.absolute(module, leaf)
                if path is not None:
                    used = self.module_of(path)
                    if used != module:
                        yield module, code.count("\n", 0, at) + 1, used

    def place(self, module, line):
        return f"{self.files[module].relative_to(self.root)}:{line}"


def name(module):
    return "::".join(module) or "the crate's root"


def check_layers(crate, layers):
    """What breaks the list: one text each."""
    level = {module: number for number, line in enumerate(layers) for module in line}
    top = {module[0] for module in crate.files if module}
    for module in sorted(top - level.keys()):
        yield f"{crate.folder.relative_to(crate.root)}: module {module} stands in no layer; add it to tests/layers/layers.txt"
    for module in sorted(level.keys() - top - {"root"}):
        yield f"tests/layers/layers.txt: {crate.folder.relative_to(crate.root)} has no module {module}; take it out"
    for module, line, used in crate.uses():
        user, used_top = (path[0] if path else "root" for path in (module, used))
        if user == used_top or user not in level or used_top not in level:
            continue
        if level[user] >= level[used_top]:
            which = "of the same layer" if level[user] == level[used_top] else "of a higher layer"
            yield (f"{crate.place(module, line)}: {user} uses {used_top}, {which}; "
                   "move what both need into a module below them, or have the caller pass it in")


def check_circles(crate):
    """The circles between the modules of one folder."""
    edges = {}  # folder: {(a, b): place}; a folder's own file is None
    for module, line, used in crate.uses():
        depth = 0
        while depth < min(len(module), len(used)) and module[depth] == used[depth]:
            depth += 1
        ends = tuple(path[depth] if len(path) > depth else None for path in (module, used))
        edges.setdefault(module[:depth], {}).setdefault(ends, crate.place(module, line))
    for folder, pairs in sorted(edges.items()):
        reach = {a: {b for x, b in pairs if x == a} for a, _ in pairs}
        for _ in reach:
            for known in reach.values():
                known.update(*(reach.get(b, ()) for b in list(known)))
        for (a, b), place in sorted(pairs.items(), key=lambda it: it[1]):
            if a in reach.get(b, ()):
                a, b = (it or f"{name(folder)} itself" for it in (a, b))
                yield (f"{place}: {a} uses {b}, which uses {a} (perhaps through others); "
                       "move what both need into a module of its own")


def check_crates(allowed):
    """Each crate's dependencies on others of the workspace. Those of tests are left out."""
    manifests, names = {}, {}
    for path in sorted(ROOT.glob("**/Cargo.toml")):
        if "target" in path.relative_to(ROOT).parts:
            continue
        text = path.read_text()
        found = re.search(r'^\[package\].*?^name = "([^"]+)"', text, re.S | re.M)
        if found:
            manifests[path], names[found.group(1)] = text, path
    wanted = {line[0]: set(line[1:]) for line in allowed}
    for crate, path in sorted(names.items()):
        here = path.relative_to(ROOT)
        if "tests" in here.parts:
            continue
        if crate not in wanted:
            yield f"{here}: crate {crate} is not in tests/layers/layers.txt; add what it may depend on"
            continue
        section = ""
        for number, line in enumerate(manifests[path].splitlines(), 1):
            section = line.strip("[] ") if line.startswith("[") else section
            used = re.match(r"[\w-]+", line)
            if re.search(r"(^|\.)dependencies$", section) and used and used.group() in names \
                    and used.group() not in wanted[crate]:
                yield f"{here}:{number}: {crate} depends on {used.group()}, a crate that it must not know"


class Floors:
    """The calls between the files of one type, or of a few that belong together: `calls FOLDER TYPE...` in layers.txt. A
    line has the files and folders of one floor, the top one first; `within FLOOR: N` freezes the calls between its files."""

    def __init__(self, heading, lines, root=ROOT):
        _, folder, *self.types = heading.split()
        self.folder, self.root = root / folder, root
        self.frozen = {line[1]: int(line[2]) for line in lines if line[0] == "within"}
        order = [line for line in lines if line[0] != "within"]
        self.level = {part: number for number, line in enumerate(order) for part in line}
        self.homes, self.foreign, self.blocks, self.code = {}, set(), [], {}
        for path in sorted(self.folder.rglob("*.rs")):
            if path.stem != "tests":
                self.read(path.relative_to(self.folder), code_of(path))

    def read(self, file, code):
        """The methods of a file, those of other types too, and where each block of ours begins and ends."""
        self.code[file] = code
        for block in re.finditer(r"^impl\b[^{;]*\{", code, re.M):
            name = re.search(r"(?:\bfor\s+|^impl(?:\s*<[^{]*?>)?\s+)(%s)[^{]*\{$" % IDENTIFIER, block.group())
            end = code.find("\n}", block.end())
            methods = re.findall(r"\bfn\s+(%s)" % IDENTIFIER, code[block.end():end])
            if name and name.group(1) in self.types and " for " not in block.group():
                self.blocks.append((file, name.group(1), block.end(), end))
                for method in re.finditer(r"^    (?:\w+(?:\([^)]*\))? )*fn\s+(%s)" % IDENTIFIER,
                                          code[block.end():end], re.M):
                    self.homes[name.group(1), method.group(1)] = file
            else:
                self.foreign.update(methods)

    def calls(self):
        """(file, line, file, method) of each call from a file to another one."""
        receivers = {name.lower(): name for name in self.types}
        call = re.compile(r"((?:\b%s\s*\.\s*)*)\b(%s)\s*(?:\.|(::))\s*(%s)\b(\s*(?:::\s*<[^>(]*>\s*)?\()?"
                          % (IDENTIFIER, IDENTIFIER, IDENTIFIER))
        for file, code in self.code.items():
            of = [block for block in self.blocks if block[0] == file]
            typed = dict(re.findall(r"\b(%s)\s*:\s*&(?:'\w+\s+)?(?:mut\s+)?(%s)\b" % (IDENTIFIER, "|".join(self.types)), code))
            at = 0
            while found := call.search(code, at):
                before, receiver, path, method, called = found.groups()
                at = found.end(2)
                own = next((kind for _, kind, begin, end in of if begin <= found.start() < end), None)
                chain = [part.strip() for part in before.split(".") if part.strip()]
                if path:
                    kinds = [own] if receiver == "Self" else [receiver]
                elif not called or any(part != "self" and part not in receivers for part in chain):
                    continue
                elif receiver == "self":
                    kinds = [own]
                elif receiver in receivers or receiver in typed:
                    kinds = [receivers.get(receiver) or typed[receiver]]
                else:
                    # A closure's argument has no type to be seen: by the name, where no other type has such a method.
                    is_argument = not chain and re.search(r"\|(?:[^|\n]*\W)?%s\b[^|\n]*\|" % receiver, code)
                    kinds = self.types if is_argument and method not in self.foreign else []
                for kind in kinds:
                    home = self.homes.get((kind, method))
                    if home and home != file:
                        yield file, code.count("\n", 0, found.start()) + 1, home, method

    def check(self):
        """What breaks the order of the floors; says how many calls there are."""
        up, within = 0, dict.fromkeys(self.frozen, 0)
        for file, line, home, method in self.calls():
            here, there = (path.parts[0].removesuffix(".rs") for path in (file, home))
            missing = next((part for part in (here, there) if part not in self.level), None)
            place = f"{(self.folder / file).relative_to(self.root)}:{line}"
            if missing:
                yield f"{place}: {missing} stands on no floor; add it to tests/layers/layers.txt"
            elif self.level[here] > self.level[there]:
                up += 1
                yield f"{place}: {here} calls {method}() in {home}, of a higher floor; the caller above has to make that call"
            elif here == there and here in within:
                within[here] += 1
        for floor, count in within.items():
            print(f"{' and '.join(self.types)}: {count} calls between the files of {floor}, frozen at {self.frozen[floor]}")
            if count > self.frozen[floor]:
                yield (f"{count} calls between the files of {floor}, {self.frozen[floor]} were there; "
                       "put what belongs together into one file, or call from the floor above")
        print(f"{' and '.join(self.types)}: edges up: {up}")


def check_floors_itself():
    """Plants calls upwards: by self, by an argument, by a closure's argument, by a path."""
    files = {"up/a.rs": "impl Top {\n    fn top(&mut self) {\n        self.books.low();\n    }\n    fn other() {}\n}\n",
             "low/b.rs": "impl Books {\n    fn low(&mut self) {\n        self.side();\n        all(|it| it.top());\n        Top::other();\n    }\n}\n"
                         "fn free(all: &mut Top) {\n    all.top();\n}\nimpl Other {\n    fn x(&self) {\n        self.top();\n    }\n}\n",
             "low/c.rs": "impl Books {\n    fn side(&mut self) {\n        self.list.low();\n    }\n}\n"}
    with tempfile.TemporaryDirectory() as folder:
        for file, text in files.items():
            path = Path(folder, "src", file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        floors = Floors("calls src Top Books", [["up"], ["low"], ["within", "low", "9"]], Path(folder))
        found = [(str(file), line, method) for file, line, _, method in floors.calls()]
    planted = [("low/b.rs", 3, "side"), ("low/b.rs", 4, "top"), ("low/b.rs", 5, "other"), ("low/b.rs", 9, "top"),
               ("up/a.rs", 3, "low")]
    if found != planted:
        yield f"planted {planted}, found {found}"


def check_itself():
    """Plants faults in a crate of its own: a check that finds nothing is worth nothing."""
    files = {"src/main.rs": "mod a;\nmod b;\n#[cfg(test)]\nmod t;\nuse a::A;\n", "src/t.rs": "use crate::a::A;\n", "src/b.rs": "// crate::a\nuse crate::{\n    a::A,\n};\n",
             "src/a/mod.rs": "mod x;\nmod y;\npub use x::A;\n", "src/a/x.rs": "use super::y::Y;\n",
             "src/a/y.rs": "fn y() {\n    super::A::new()\n}\n#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n"}
    with tempfile.TemporaryDirectory() as folder:
        for file, text in files.items():
            path = Path(folder, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        crate = Crate("src", Path(folder))
        found = [fault.split("; ")[0] for fault in check_layers(crate, [["root"], ["a"], ["b"]])]
        found += [fault.split(",")[0] for fault in check_circles(crate)]
    planted = ["src/b.rs:2: b uses a, of a higher layer", "src/a/x.rs:1: x uses y", "src/a/y.rs:2: y uses x"]
    if found != planted:
        yield f"planted {planted}, found {found}"


def main():
    sections = read_layers(HERE / "layers.txt")
    passed = failed = 0
    for heading, lines in {"this check": [], **sections}.items():
        if heading == "this check":
            faults = list(check_itself()) + list(check_floors_itself())
        elif heading.startswith("calls "):
            faults = list(Floors(heading, lines).check())
        elif heading == "crates":
            faults = list(check_crates(lines))
        else:
            crate = Crate(heading)
            faults = list(check_layers(crate, lines)) + list(check_circles(crate))
        passed, failed = passed + (not faults), failed + bool(faults)
        print(f"{'FAILED' if faults else 'ok    '} {heading}")
        for fault in faults:
            print(f"  {fault}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
