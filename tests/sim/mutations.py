#!/usr/bin/env python3
"""Breaks each promise of the core on purpose, and expects the simulator to notice. A mutation that survives is a failure, and so
is one whose pattern is no longer in its function. Works on a copy; must never change the tree. tests/sim/mutations.sh is the command.

One build has all mutations, each behind a switch that is read once (SIM_MUTATION=N): the build is paid for once, and each
mutation costs one run. mutations/*.txt has any number of
  mutation: NAME
  breaks: THE PROMISE
  in: FUNCTION (of the core, in any file and of any type)
  run: ARGUMENTS (optional: of the simulator; the scenario that shows a mutation which worlds show seldom)
  --- original
  whole statements or one expression, exactly once in the functions of that name
  --- changed
  what stands there instead; or, where it says $ON, the whole text, with $ON as the condition
  --- end
Space, line ends, comments and the comma before a closing bracket do not count in the original. `self.` stands there for
any path that the function takes instead: `self.books.`, `books.`; in the changed text it becomes the same path."""

import argparse
import datetime
import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
TREE = TARGET / "mutations"
CORE = "broker/core/src"
STEPS = os.environ.get("SIM_MUTATION_STEPS", "150000")
# Scenarios that take longer than all others; a mutation that needs one names it.
LONG = ["--without", "order_when_use_is_skewed", "--without", "end_when_thousands_of_leases"]
# In a sample the core as it is runs for so many steps: the other tests of the same run have it run for more.
SAMPLE_STEPS = "30000"
# A run that takes ten times as long as it should has hung.
RUN_LIMIT_S = 600
UNCHANGED = -1

SWITCH = """
/// Whether this mutation is switched on.
pub(crate) fn mutated(number: usize) -> bool {
    static ON: std::sync::LazyLock<Option<usize>> =
        std::sync::LazyLock::new(|| std::env::var("SIM_MUTATION").ok()?.parse().ok());
    *ON == Some(number)
}
"""


@dataclass
class Mutation:
    name: str
    breaks: str
    function: str
    run: list
    original: str
    changed: str
    stale: str = ""


BLOCK = re.compile(r"^(?P<head>(?:[a-z]+: [^\n]*\n)+)--- original\n(?P<original>.*?)--- changed\n(?P<changed>.*?)--- end\n", re.S | re.M)


def read_list():
    """All mutations. What is no block is an error: a mutation that is not read is never run."""
    found = []
    for file in sorted((HERE / "mutations").glob("*.txt")):
        text = file.read_text()
        rest = BLOCK.sub("", text).strip()
        if rest:
            sys.exit("mutations: %s: no mutation: %r" % (file.name, rest[:60]))
        for block in BLOCK.finditer(text):
            head = dict(line.split(": ", 1) for line in block["head"].splitlines())
            found.append(Mutation(head["mutation"], head["breaks"], head["in"], head.get("run", "").split(),
                                  block["original"].rstrip("\n"), block["changed"].rstrip("\n")))
    return found


TOKEN = re.compile(r"""\s+ | //[^\n]* | /\*.*?\*/ | (?P<token>
    r?\#*"(?:\\.|[^"\\])*"\#* | '(?:\\[^']+|[^\\'])' | \w+ | . )""", re.S | re.X)


def tokens(text):
    """Each token with where it begins and ends."""
    return [(at["token"], at.start(), at.end()) for at in TOKEN.finditer(text) if at["token"]]


def close_of(found, at):
    """The index of the bracket that closes the one at this index."""
    depth = 0
    for index in range(at, len(found)):
        depth += (found[index][0] in "([{") - (found[index][0] in ")]}")
        if depth == 0:
            return index
    return len(found) - 1


class Source:
    """A file of the core: its text, its tokens and where its functions begin and end."""

    def __init__(self, path):
        self.path = path
        self.set(path.read_text())

    def set(self, text):
        self.text, self.tokens, self.functions = text, tokens(text), []
        for at, (token, _, _) in enumerate(self.tokens[:-1]):
            if token == "fn" and re.fullmatch(r"[a-z_]\w*", self.tokens[at + 1][0]):
                self.functions.append((self.tokens[at + 1][0], at, self.end_of(at)))

    def end_of(self, at):
        """The end of the function that begins there: a body, or the semicolon of a declaration."""
        while self.tokens[at][0] not in "{;":
            at = close_of(self.tokens, at) + 1 if self.tokens[at][0] in "([" else at + 1
        return close_of(self.tokens, at) if self.tokens[at][0] == "{" else at

    def matches(self, pattern, begin, end):
        """Each place of a pattern there, as the first and last token, and the paths that stand for `self`."""
        for at in range(begin, end):
            if found := match(pattern, 0, self.tokens, at, end, {}):
                yield at, found[0] - 1, found[1]


def is_ahead_of_close(found, at):
    return found[at][0] == "," and at + 1 < len(found) and found[at + 1][0] in ")]}"


def match(pattern, at, found, here, end, paths):
    """Where the text after a match goes on, with the paths that stand for `self`; None without a match."""
    while at < len(pattern):
        if here > end:
            return None
        if pattern[at][0] == "self" and at + 2 < len(pattern) and pattern[at + 1][0] == ".":
            return match_path(pattern, at, found, here, end, paths)
        if pattern[at][0] == found[here][0]:
            at, here = at + 1, here + 1
        elif is_ahead_of_close(pattern, at):
            at += 1
        elif is_ahead_of_close(found, here):
            here += 1
        else:
            return None
    return here, paths


def match_path(pattern, at, found, here, end, paths):
    """`self.` in the pattern: a name, or several with dots between them, and the dot."""
    if found[here - 1][0] == "." != found[here - 2][0]:
        return None
    path = ""
    while here < end and re.fullmatch(r"[a-z_]\w*", found[here][0]) and found[here + 1][0] == ".":
        path += found[here][0] + "."
        here += 2
        if done := match(pattern, at + 2, found, here, end, {**paths, pattern[at + 2][0]: path}):
            return done
    return None


def with_paths(changed, paths):
    """The changed text with the paths of the function in place of `self.`."""
    usual = next(iter(paths.values()), "self.")
    return re.sub(r"\bself\.(\w+)", lambda at: paths.get(at[1], usual) + at[1], changed)


def switched(original, changed, on):
    """The mutation behind its switch, in place of the original."""
    if "$ON" in changed:
        return changed.replace("$ON", on)
    if original[-1] in ";}":
        return "if %s { %s } else { %s }" % (on, changed, original)
    return "(if %s { %s } else { %s })" % (on, changed, original)


def apply(mutation, number, sources):
    """Puts a mutation into the one function that has its pattern; says in `stale` why it cannot."""
    pattern = tokens(mutation.original)
    places = [(source, *found) for source in sources for name, begin, end in source.functions if name == mutation.function
              for found in source.matches(pattern, begin, end)]
    if len(places) != 1:
        mutation.stale = "its pattern is %s fn %s%s" % ("%d times in" % len(places) if places else "not in", mutation.function,
                                                        "" if places else seen(pattern, sources))
        return
    source, first, last, paths = places[0]
    begin, end = source.tokens[first][1], source.tokens[last][2]
    new = switched(source.text[begin:end], with_paths(mutation.changed, paths), "crate::mutated(%d)" % number)
    source.set(source.text[:begin] + new + source.text[end:])


def seen(pattern, sources):
    """Where else the pattern is, so that a mutation of a function with a new name is mended in one word."""
    others = [name for source in sources for name, begin, end in source.functions if any(source.matches(pattern, begin, end))]
    return "; it is in fn " + ", ".join(others) if others else ""


def copy(mutations):
    """Copies what the simulator needs, with the mutations in it. The crates are in a folder of their own there: cargo knows a crate
    by its place in the workspace, and would take these for the real ones, which have the same target directory."""
    new = TREE.with_name("mutations.new")
    shutil.rmtree(new, ignore_errors=True)
    crates = new / "mutated"
    for folder in ("broker/core", "libclient/protocol", "tests/sim"):
        shutil.copytree(ROOT / folder, crates / folder)
    shutil.copy2(ROOT / "Cargo.lock", new)
    manifest = (ROOT / "Cargo.toml").read_text().replace('path = "', 'path = "mutated/')
    members = 'members = ["mutated/broker/core", "mutated/libclient/protocol"]'
    (new / "Cargo.toml").write_text(re.sub(r"^members = \[.*?^\]", members, manifest, flags=re.S | re.M))
    sources = [Source(file) for file in sorted((crates / CORE).rglob("*.rs"))]
    for number, mutation in enumerate(mutations):
        apply(mutation, number, sources)
    for source in sources:
        source.path.write_text(source.text)
    with open(crates / CORE / "lib.rs", "a") as file:
        file.write(SWITCH)
    # A file that is as it was keeps its time: then cargo does not build it again.
    for file in filter(Path.is_file, new.rglob("*")):
        before = TREE / file.relative_to(new)
        if before.is_file() and filecmp.cmp(before, file, shallow=False):
            shutil.copystat(before, file)
        else:
            file.touch()
    shutil.rmtree(TREE, ignore_errors=True)
    new.rename(TREE)


def build(chosen):
    """The mutated simulator: in the workspace's own target directory, with its profile, as the dependencies have been built."""
    command = ["cargo", "test", "--quiet", "-p", "fdbroker-core", "--test", "sim", "--no-run", "--message-format=json-render-diagnostics"]
    ran = subprocess.run(command, cwd=TREE, env={**os.environ, "CARGO_TARGET_DIR": str(TARGET)}, capture_output=True, text=True)
    if ran.returncode:
        print("\n".join(ran.stderr.splitlines()[-60:]))
        print("mutations: the mutated core does not build: mend the mutation named above\n0 passed, %d failed" % len(chosen))
        sys.exit(1)
    built = [json.loads(line).get("executable") for line in ran.stdout.splitlines() if line.startswith("{")]
    return [path for path in built if path and "/sim-" in path][-1]


def run(program, number, arguments):
    """Runs one mutation: its exit status and what it printed."""
    command = [program, *arguments, "--threads", "1", "--fail-fast"]
    try:
        ran = subprocess.run(command, env={**os.environ, "SIM_MUTATION": str(number)}, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=RUN_LIMIT_S)
    except subprocess.TimeoutExpired:
        return "hung", ""
    return ran.returncode, ran.stdout.decode(errors="replace")


def report(mutation, ran):
    """Says what became of a mutation, and whether it was caught."""
    if mutation.stale:
        print("STALE     %-42s %s" % (mutation.name, mutation.stale))
        return False
    status, text = ran.result()
    why = re.search(r"^  violated: (.*)", text, re.M)
    if status == 1 and why:
        print("caught    %-42s %s" % (mutation.name, why[1][:110]))
        return True
    print("SURVIVED  %-42s breaks %s (exit %s)" % (mutation.name, mutation.breaks, status))
    return False


def choose(mutations, options):
    """The numbers of the mutations that were asked for."""
    total = len(mutations)
    if options.sample is None or options.sample >= total:
        return [at for at, mutation in enumerate(mutations) if options.only in mutation.name]
    # A clone without its history has the commit, too; a source archive has neither, and takes the day.
    ran = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    commit = ran.stdout.strip() or datetime.date.today().strftime("%Y%m%d")
    print("a sample of %d of %d, by %s; to repeat one: tests/sim/mutations.sh --only NAME" % (options.sample, total, commit),
          file=sys.stderr)
    return [(int(commit, 16) % total + at * total) // options.sample for at in range(options.sample)]


def parse():
    parser = argparse.ArgumentParser(prog="tests/sim/mutations.sh", epilog="Without options all of them run. Ends with \"N passed, N failed\". "
                                     "SIM_MUTATION_STEPS: most steps of one run (default 150000).")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--sample", type=int, metavar="N", help="N mutations, spread evenly over the list; each commit has a sample of its own")
    which.add_argument("--only", default="", metavar="NAME", help="the mutations whose name contains NAME")
    parser.add_argument("--list", action="store_true", help="print the names and what each mutation breaks")
    return parser.parse_args()


def main():
    options = parse()
    sys.stdout.reconfigure(line_buffering=True)
    mutations = read_list()
    if options.list:
        print("\n".join("%-42s %s" % (mutation.name, mutation.breaks) for mutation in mutations))
        return 0
    chosen = choose(mutations, options)
    copy(mutations)
    if options.sample is not None:
        # A sample shows what the core has left behind in the whole list: that costs no run.
        chosen = sorted({*chosen, *(at for at, mutation in enumerate(mutations) if mutation.stale)})
    program = build(chosen)
    usual = ["--steps", STEPS, *LONG]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        steps = STEPS if options.sample is None else SAMPLE_STEPS
        unchanged = pool.submit(run, program, UNCHANGED, ["--steps", steps, *LONG])
        runs = {at: pool.submit(run, program, at, mutations[at].run or usual) for at in chosen if not mutations[at].stale}
        status, text = unchanged.result()
        if status != 0:
            pool.shutdown(cancel_futures=True)
            print("\n".join(text.splitlines()[-20:]))
            print("mutations: the core without mutations does not pass, so that nothing is shown by the mutations\n0 passed, 1 failed")
            return 1
        caught = sum([report(mutations[at], runs.get(at)) for at in chosen])
    print("%d passed, %d failed" % (caught, len(chosen) - caught))
    return int(caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
