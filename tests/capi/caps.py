#!/usr/bin/env python3
"""Every blocking call of the C ABI against every full cap, with real brokers: what a call answers is listed in the header's comment
on it, and NO_QUOTA says which cap is full. Must never have a list of its own of calls, codes or caps: they are the header's and the
broker's."""

import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile

HEADER, PROGRAM = sys.argv[1:]
DAEMON, COMMAND = os.environ["FDBROKERD"], os.environ["FDBROKER"]
# Brokers at a time: each waits for most of its time.
AT_ONCE = 14
# Longer than any walk takes: a hang, then.
PATIENCE_S = 120
# AGAIN is no answer of a call that waits, but in these situations, and where the comment has one of the words.
SITUATIONS = {"suspended": "suspended|allocations that are", "no event": "none has come"}


class Header:
    """The functions, each with the comment before it."""

    def __init__(self, text):
        self.codes = set(re.findall(r"#define FDBROKER_(\w+) \d+ ", text[: text.index("fdbroker_error_name(")]))
        found = re.finditer(r"/\*((?:(?!\*/).)*)\*/\s*\n[\w ]+[ *](fdbroker_\w+)\(([^)]*)\);", text, re.S)
        found = [(it[2], it[1].replace("\n *", ""), it[3]) for it in found]
        self.comments = {name: re.sub(r"\s+", " ", comment) for name, comment, _ in found}
        self.blocking = {name for name, _, parameters in found if re.search(r"deadline_ms|timeout_ms", parameters)}

    def listed(self, name, seen=()):
        """The codes in the comment of a function, and of those that it refers to."""
        comment = self.comments[name]
        codes = {code for code in re.findall(r"FDBROKER_(\w+)", comment) if code in self.codes}
        for words in re.findall(r"(?:[Tt]hose of|As|as for|as after|as) ((?:fdbroker_\w+\(\)(?:,? and )?)+)", comment):
            for other in re.findall(r"fdbroker_\w+", words):
                if other in self.comments and other not in seen:
                    codes |= self.listed(other, (*seen, name))
        return codes


class Process:
    """A process of caps.c."""

    def __init__(self, socket, connections):
        words = [PROGRAM, socket, str(connections)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, word):
        """Its lines, up to the end of what the word asks for."""
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        lines = []
        while (line := self.process.stdout.readline()) not in ("DONE\n", ""):
            lines.append(line.rstrip("\n"))
        return lines if line else lines + ["FAIL  the process has died"]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def administer(admin, *words):
    environment = {**os.environ, "FDBROKER_ADMIN_SOCKET": admin}
    return subprocess.run([COMMAND, *words], env=environment, check=True, capture_output=True, text=True).stdout


def in_words(value, resource):
    """A cap as a text names it."""
    if not resource.endswith("_bytes"):
        return str(value)
    units = ["B", "KiB", "MiB", "GiB"]
    while value and value % 1024 == 0 and len(units) > 1:
        value, units = value // 1024, units[1:]
    return f"{value} {units[0]}"


def walk(scope, resource, has_holder):
    """All calls while the cap is full; the lines of all, and what is wrong with them."""
    with tempfile.TemporaryDirectory(prefix="fdbroker-caps-") as place:
        life, ready = os.pipe(), os.pipe()
        broker = subprocess.Popen(
            [DAEMON, "--private", place, "--log", "error", "--until-eof", str(life[0]), "--ready-fd", str(ready[1])],
            pass_fds=(life[0], ready[1]),
        )
        os.close(life[0]), os.close(ready[1])
        assert os.read(ready[0], 5) == b"READY"
        os.close(ready[0])
        socket, admin = f"{place}/fdbroker/broker.sock", f"{place}/fdbroker-admin/admin.sock"
        one, filler, rival = (Process(socket, connections) for connections in (0, 2, 2))
        said = one.do("prepare")
        # Before the cap is set: it counts all three with their connections.
        for process in (filler, rival):
            process.do("begun")
        status = json.loads(administer(admin, "status", "--json"))[resource]
        spare = {"metadata_bytes": 512, "connections": 0}.get(resource, 16384 if resource.endswith("_bytes") else 4)
        cap = status["now"] + spare
        administer(admin, "limits", "set", f"{scope}.{resource}={cap}")
        for process in [one] if scope == "client" else [filler, rival]:
            said += process.do("fill")
        said += one.do("calls")
        for process in (one, filler, rival):
            process.end()
        os.close(life[1])
        broker.wait()
    named = re.compile(f"(cap|share of the node cap) {resource}( = |, ){re.escape(in_words(cap, resource))} ")
    return said, [wrong for line in said if (wrong := judge(line, named, resource, has_holder))]


def judge(line, named, resource, has_holder):
    """What is wrong with what a call has answered; empty: nothing."""
    if line.count("\t") != 4:
        return line
    call, deadline_ms, code, situation, text = line.split("\t")
    where = f"{call} ({deadline_ms} ms): "
    if code == "OK":
        return ""
    if code not in header.listed(call):
        return where + f"{code} is not listed in the header: {text}"
    if code == "AGAIN" and not re.search(SITUATIONS.get(situation, "$^"), header.comments[call]):
        return where + f"AGAIN outside of what the header names: {text}"
    if code == "NO_QUOTA" and situation != "item":
        if not named.search(text):
            return where + f"the cap is not named: {text}"
        if has_holder and "held by" not in text:
            return where + f"no largest holder: {text}"
    return ""


header = Header(open(HEADER, encoding="utf-8").read())
limits = json.loads(subprocess.run([COMMAND, "run", "--", COMMAND, "limits", "--json"], check=True, capture_output=True, text=True).stdout)
caps = [(scope, resource) for scope, of in limits.items() for resource in of]
failed, made = 0, set()


def check(name, wrong):
    global failed
    failed += bool(wrong)
    print(("FAIL  " if wrong else "ok    ") + name, *(f"      {one}" for one in wrong), sep="\n", flush=True)


with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
    walks = [(cap, pool.submit(walk, *cap, cap[1] in limits["client"])) for cap in caps]
    for (scope, resource), future in walks:
        said, wrong = future.result(PATIENCE_S)
        made |= {line.split("\t")[0] for line in said}
        refused = sorted({line.split("\t")[0] for line in said if "\tNO_QUOTA\t" in line})
        # Beyond the cap of mapped ones a lease goes on to count as open, and no call is refused; memory of a GPU is not to be had here.
        if not refused and resource not in ("mapped_leases", "kept_gpu_bytes"):
            wrong.append("no call was refused: the cap was not full")
        check(f"the {scope} cap {resource} is full: refused are {', '.join(refused) or 'none'}", wrong)
check("each call that has a deadline was made", sorted(header.blocking - made))
sys.exit(failed > 0)
