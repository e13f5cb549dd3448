"""The checks of tests/view/run.sh, which says what they are. Must never depend on time, nor on which other users the machine has."""

import ctypes
import json
import os
import pwd
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import wire

# Uids and a gid that no machine uses, but for the first user, who has a name.
SERVICE, ONE, OTHER, MONITOR, MONITORS = 61010, 65534, 61012, 61013, 61099
PATIENCE_S = 20
passed = failed = 0


def check(name, is_good, *shown):
    global passed, failed
    if is_good:
        passed += 1
        print("ok      " + name, flush=True)
    else:
        failed += 1
        print("FAILED  " + name, flush=True)
        for text in shown:
            print("        " + str(text)[:2000].replace("\n", "\n        "), flush=True)


class Node:
    """The service in directories of its own."""

    def __init__(self, place):
        self.place = place
        self.dir = tempfile.mkdtemp(prefix="fdb-view-node.")
        os.chmod(self.dir, 0o755)
        self.clients, self.admin = self.dir + "/fdbroker", self.dir + "/fdbroker-admin"
        for path, mode in [(self.clients, 0o755), (self.admin, 0o700)]:
            os.mkdir(path, mode)
            os.chown(path, SERVICE, SERVICE)
        self.config = self.dir + "/fdbrokerd.toml"
        with open(self.config, "w") as file:
            file.write('monitor_group = "%d"\n[caps.node]\nallocations = 64\n' % MONITORS)
            file.write("[caps.domain]\nallocations = 60\n")
        self.env = {"PATH": os.environ["PATH"], "FDBROKER_SOCKET": self.clients + "/broker.sock"}
        self.actors = []
        self.broker = self.start()

    def start(self, *flags):
        command = [self.place + "/fdbrokerd", "--config", self.config, "--ready-fd", "1", *flags]
        log = open(self.dir + "/log", "a")
        broker = subprocess.Popen(command, env=self.env, user=SERVICE, group=SERVICE, extra_groups=[],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        said = broker.stdout.read()
        if said != b"READY\n":
            sys.exit("the broker did not start: " + open(self.dir + "/log").read())
        return broker

    def end(self):
        for actor in self.actors:
            actor.end()
        self.broker.kill()
        self.broker.wait()
        shutil.rmtree(self.dir)

    def run(self, who, *arguments, stdin=None):
        """Status, output and errors of the command for a user."""
        uid, groups = who
        ran = subprocess.run([self.place + "/fdbroker", *arguments], env=self.env, user=uid, group=groups[0], extra_groups=groups,
                             input=stdin, capture_output=True, cwd="/", timeout=120)
        return ran.returncode, ran.stdout.decode(), ran.stderr.decode()

    def json(self, who, *arguments):
        status, out, errors = self.run(who, *arguments, "--json")
        if status not in (0, 5):
            check("%s for %s" % (" ".join(arguments), who), False, status, out, errors)
            return {}
        return json.loads(out)


def become(who):
    """Makes this process one of the user. The interpreter may be in a place that only root may enter, so there is no exec, which would make
    the process as visible to its user as any other."""
    uid, groups = who
    os.setgroups(groups)
    os.setgid(groups[0])
    os.setuid(uid)
    PR_SET_DUMPABLE = 4
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


class Actor:
    """A client of a user, in a process of its own."""

    def __init__(self, node, who, name):
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                ours.close()
                become(who)
                wire.serve(node.clients + "/broker.sock", name, theirs)
            finally:
                os._exit(0)
        theirs.close()
        self.file = ours.makefile("rw")
        node.actors.append(self)
        json.loads(self.file.readline())

    def __call__(self, *what):
        self.file.write(json.dumps(what) + "\n")
        self.file.flush()
        return json.loads(self.file.readline())

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def as_user(who, function):
    """What the function gives in a process of this user."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become(who)
            os.write(writing, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else "it failed"


def id_of(handle):
    return struct.unpack_from("<II", bytes.fromhex(handle), 16)


def named(handle):
    return "%d.%d" % id_of(handle)


ROOT, USER_ONE, USER_OTHER = (0, [0]), (ONE, [ONE]), (OTHER, [OTHER])
USER_MONITOR = (MONITOR, [MONITOR, MONITORS])


def outputs(node, who, own):
    """All that the command shows a user: arguments and text."""
    lists = [["ls"], ["clients"], ["holders"], ["jobs"], ["objects"], ["objects", "--all"]]
    every = [command + more for command in lists for more in ([], ["--json"])]
    for command in ([["status"], ["limits"], ["audit"], ["audit", "--verbose"]]):
        every += [command, command + ["--json"]]
    every += [["show", own], ["show", own, "--json"], ["top", "--once", "--interval", "0.2"], ["holders", "uid:%d" % who[0]]]
    every += [["watch", "--since", "all", "--no-follow"], ["watch", "--since", "all", "--no-follow", "--json"], ["doctor"]]
    for arguments in every:
        status, out, errors = node.run(who, *arguments)
        yield arguments, status, out + errors


def traces(text, words):
    """Which of the words stand in the text, each by itself; an age ("1.1 s") reads like the ID of an allocation and is none."""
    return [word for word in words if re.search(r"(?<![\w.])%s(?![\w.]| (ms|s|min|h|d)\b)" % re.escape(word), text)]


def see(node):
    """What each user is shown of two users' allocations, leases, objects and jobs."""
    other = Actor(node, USER_OTHER, "other-rank")
    own = other("register", 3 << 12, 0)["handle"]
    other("acquire", own)
    before = node.json(USER_OTHER, "status")

    one = Actor(node, USER_ONE, "secret-rank")
    sizes = [size << 12 for size in (1237, 2239, 4243)]
    handles = [one("register", size, 0)["handle"] for size in sizes]
    leases = [one("acquire", handle)["lease"] for handle in handles[:2]]
    status, _, errors = node.run(USER_ONE, "put", "secret/name", "-", "--keep", stdin=b"s" * 7919)
    check("a user puts an object", status == 0, errors)
    check("what is told is right", all(lease != 0 for lease in leases))

    after = node.json(USER_OTHER, "status")
    same = ["uptime_seconds"]
    check("the status of a user is the same whatever another does",
          {k: v for k, v in before.items() if k not in same} == {k: v for k, v in after.items() if k not in same}, before, after)
    check("its scope is said", (before.get("scope"), after["allocations"]["now"], after["open_leases"]["now"]) == ("own", 1, 1), after)
    check("what is counted for the node alone is left out", not {"table_places", "domains", "grants", "stored_fds"} & set(after), after)

    pids = [str(actor.pid) for actor in node.actors if actor is not other]
    words = [str(ONE), pwd.getpwuid(ONE).pw_name, "secret-rank", "secret/name", *pids, *map(str, sizes), "7919"]
    words += handles + [named(handle) for handle in handles]
    words += ["4.8 MiB", "8.7 MiB", "16.6 MiB"]
    shown = {}
    for arguments, status, text in outputs(node, USER_OTHER, named(own)):
        name = " ".join(arguments)
        check("%s shows a user nothing of another" % name, not traces(text, words), traces(text, words), text)
        check("%s is answered" % name, status == 0 or arguments[0] in ("doctor", "audit") and status == 5, status, text)
        shown[name] = text
    check("objects of others are not listed", json.loads(shown["objects --json"]) == {"objects": []}, shown["objects --json"])
    for command, key in [("ls", "allocations"), ("clients", "clients"), ("holders", "holders")]:
        own_list = json.loads(shown[command + " --json"])
        check("%s shows a user what is their own" % command, len(own_list[key]) == 1 and own_list["scope"] == "own", own_list)
    check("the one lease is the user's", str(other.pid) in shown["holders"], shown["holders"])
    check("the words that are looked for are shown to root", len(traces(
        "".join(text for _, _, text in outputs(node, ROOT, named(handles[0]))), words[:3] + pids + [named(handles[0])])) >= 4 + len(pids) - 1)

    for subject in [handles[0], named(handles[0]), "pid:%d" % one.pid, "uid:%d" % ONE]:
        for command in ["show", "holders"]:
            if command == "show" and ":" in subject:
                continue
            told = node.run(USER_OTHER, command, subject)
            never = re.sub(r"\d+$", "424242", subject) if len(subject) < 100 else None
            asked = node.run(USER_OTHER, command, never) if never else (4, "", "")
            plain = [part.replace(subject, "X").replace(subject.split(":")[-1], "X") for part in told[1:]]
            if never:
                of_never = [part.replace(never, "X").replace(never.split(":")[-1], "X") for part in asked[1:]]
                check("%s %s is answered as for what never was" % (command, subject), (told[0], plain) == (asked[0], of_never), told, asked)
            check("%s of another user's is not found" % command, told[0] == 4, told)

    for command in ["show", "holders"]:
        status, out, errors = node.run(USER_ONE, command, "secret/name")
        check("%s takes the name of a user's own object" % command, status == 0 and ("8 KiB" in out or command == "holders"), out, errors)
        for who, name in [(USER_OTHER, "another user"), (ROOT, "root")]:
            told, asked = node.run(who, command, "secret/name"), node.run(who, command, "never/name")
            check("%s says nothing of a user's object to %s" % (command, name),
                  told[0] == 4 and told == tuple(part.replace("never", "secret") if isinstance(part, str) else part for part in asked), told, asked)

    for who, name in [(USER_MONITOR, "a monitor"), (ROOT, "root")]:
        seen = node.json(who, "ls")
        uids = {it["owner_uid"] for it in seen["allocations"]}
        check("%s sees the allocations of both" % name, {ONE, OTHER} <= uids and seen["scope"] == "node", seen)
        check("%s sees the clients of both" % name, {ONE, OTHER} <= {it["uid"] for it in node.json(who, "clients")["clients"]})
        check("%s sees the leases of both" % name, {ONE, OTHER} <= {it["uid"] for it in node.json(who, "holders")["holders"]})
        seen = node.json(who, "objects", "--all")
        found = [(it["user"], it["uid"], it["size_bytes"]) for it in seen["objects"] if it["name"] == "secret/name"]
        check("%s sees the objects of another user, and whose they are" % name,
              found == [(pwd.getpwuid(ONE).pw_name, ONE, 7919)] and seen["scope"] == "node", seen)
        check("%s sees which allocation has them" % name, "secret/name" in [it["object"] for it in node.json(who, "ls")["allocations"]])
        jobs = [it["objects"] for it in node.json(who, "jobs")["jobs"] if it["uid"] == ONE]
        check("%s sees how many a job has made" % name, sum(jobs) == (1 if jobs else 0), jobs)
        check("%s sees the totals" % name, node.json(who, "status")["allocations"]["now"] >= 4)
        check("%s has the metrics" % name, node.run(who, "metrics")[0] == 0)
    seen = node.json(USER_ONE, "objects", "--all")
    check("a user sees their own objects of all jobs", [it["name"] for it in seen["objects"]] == ["secret/name"] and seen["scope"] == "own", seen)
    status, _, errors = node.run(USER_OTHER, "metrics")
    check("metrics are of the node, and not for a user", status == 4 and "monitor_group" in errors, status, errors)
    return one, other, handles, own


def say(node):
    """What a terminal is told of the part that is shown."""
    def on_terminal(who):
        ours, theirs = os.openpty()
        uid, groups = who
        subprocess.run([node.place + "/fdbroker", "status"], env=node.env, user=uid, group=groups[0], extra_groups=groups, cwd="/",
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, timeout=120)
        os.set_blocking(ours, False)
        try:
            return os.read(ours, 4096).decode()
        except BlockingIOError:
            return ""

    text = on_terminal(USER_OTHER)
    check("a terminal is told in one dim line that it is the own part", text.count("your own part") == 1 and text.count("\n") == 1
          and text.startswith("\x1b[2m"), text)
    check("a monitor and root are told nothing", (on_terminal(USER_MONITOR), on_terminal(ROOT)) == ("", ""))
    status, _, errors = node.run(USER_OTHER, "status")
    check("a pipe is told nothing", (status, errors) == (0, ""), errors)


def share(node, one, other):
    """Memory that one user has shared with the other."""
    handle = one("register", 977 << 12, 2)["handle"]
    check("the other user is granted it", other("acquire", handle)["lease"] != 0)
    owners, holders = node.json(USER_ONE, "holders"), node.json(USER_OTHER, "holders")
    leases = [it for it in owners["holders"] if it["allocation"] == named(handle)]
    check("its owner sees that another user has it, and not who",
          [(it["pid"], it["uid"], it["name"]) for it in leases] == [(None, None, "another user")], leases)
    check("no list of the owner's names the holder",
          not traces(json.dumps(owners), [str(OTHER), str(other.pid), "other-rank"]), owners)
    leases = [it for it in holders["holders"] if it["allocation"] == named(handle)]
    check("its holder sees the lease, and not the owner",
          [(it["pid"], it["owner_pid"]) for it in leases] == [(other.pid, None)], leases)
    check("no list of the holder's names the owner",
          not traces(json.dumps(holders), [str(ONE), str(one.pid), "secret-rank"]), holders)
    told = node.run(USER_OTHER, "holders", named(handle), "--json")
    check("its holder finds the lease by the allocation", told[0] == 0 and [it["pid"] for it in json.loads(told[1])["holders"]] == [other.pid], told)
    text = node.run(USER_ONE, "holders")[1]
    check("a list for people says so", "another user" in text, text)


def act(node, handles, own):
    """Who may act."""
    kept = {it["allocation"] for it in node.json(ROOT, "ls")["allocations"]}
    caps = node.json(ROOT, "limits")
    acts = [["evict", own], ["evict", "--all"], ["revoke", "--yes", own], ["drain"], ["limits", "set", "node.fds=7"],
            ["evict", "--dry-run", "--all"]]
    for who, name in [(USER_OTHER, "a user"), (USER_MONITOR, "a monitor")]:
        for arguments in acts:
            status, out, errors = node.run(who, *arguments)
            check("%s may not: %s" % (name, " ".join(arguments)), status in (2, 4) and (status == 2 or "root" in errors), status, out, errors)
    after = {it["allocation"] for it in node.json(ROOT, "ls")["allocations"]}
    check("nothing has changed", (kept, caps) == (after, node.json(ROOT, "limits")) and not node.json(ROOT, "status")["draining"])
    status, _, errors = node.run(ROOT, "evict", named(handles[2]))
    check("root may evict", status == 0, errors)


def ask_raw(node, handles, own):
    """The requests themselves, which no command would make."""
    path = node.clients + "/view.sock"
    act = struct.pack("<IIQII", 0, 0, 0, 0, 0)
    dry = struct.pack("<IIQII", 0, 0, 0, 1, 0)
    cap = struct.pack("<BBBxxxxxQ", 4, 1, 0, 7)
    forged = [(wire.EVICT, act), (wire.EVICT, dry), (wire.REVOKE, act), (wire.REVOKE, dry), (wire.DRAIN, act), (wire.SET_LIMIT, cap),
              (wire.TAKEOVER, wire.query(value=12)), (wire.TAKEOVER_STEP, wire.query())]

    def forge():
        connection = wire.Connection(path)
        told = []
        for kind, body in forged:
            answer, body, fds = connection.call(wire.message(kind, body))
            told.append([kind, answer, struct.unpack_from("<H", body)[0], len(fds)])
        answer, _, _ = connection.call(wire.message(wire.STATUS, wire.query()))
        return told + [[wire.STATUS, answer, 0, 0]]

    for who, name in [(USER_OTHER, "a user"), (USER_MONITOR, "a monitor"), (ROOT, "root")]:
        told = as_user(who, forge)
        refused = all(answer == wire.FAILED and code == wire.NOT_PERMITTED and fds == 0 for _, answer, code, fds in told[:-1])
        check("by the socket for looking, %s is refused each act, and is served on" % name, refused and told[-1][1] == wire.STATUS + 1, told)

    def look(filter, value):
        def ask():
            connection = wire.Connection(path)
            kinds = [wire.ALLOCATIONS, wire.LEASES, wire.CLIENTS, wire.JOBS, wire.DOMAINS, wire.TOMBSTONES]
            answers = [connection.call(wire.message(kind, wire.query(0, filter, value))) for kind in kinds]
            return [[kind, body.hex()] for kind, body, _ in answers]
        return ask

    slot, generation = id_of(handles[0])
    value = slot | generation << 32
    told, never = (as_user(USER_OTHER, look(1, value)), as_user(USER_OTHER, look(1, value + (99 << 32))))
    check("a handle of another user is answered as one that never was", told == never, told, never)
    slot, generation = id_of(own)
    told = as_user(USER_OTHER, look(1, slot | generation << 32))
    check("an own one is answered", told != never)
    for filter, mine, theirs in [(2, node.actors[0].pid, node.actors[1].pid), (3, OTHER, ONE)]:
        told, never = as_user(USER_OTHER, look(filter, theirs)), as_user(USER_OTHER, look(filter, 424242))
        check("what another user has is not chosen by filter %d" % filter, told == never, told, never)

    def pages():
        """All that any cursor gives."""
        connection = wire.Connection(path)
        bodies = b""
        for kind in [wire.ALLOCATIONS, wire.LEASES, wire.CLIENTS, wire.JOBS, wire.DOMAINS, wire.TOMBSTONES]:
            for cursor in [0, 1, 2, 3, 5, 17, 4095, 4096, 1 << 20, (1 << 32) - 1]:
                bodies += connection.call(wire.message(kind, wire.query(cursor)))[1]
        return bodies.hex()

    body = as_user(USER_OTHER, pages)
    secrets = {"uid": struct.pack("<I", ONE), "name": b"secret-rank", "pid": struct.pack("<I", node.actors[1].pid), "size": struct.pack("<Q", 1237 << 12)}
    found = [name for name, secret in secrets.items() if secret.hex() in body]
    check("no page has the uid, the name, the pid or a size of another user", not found, found)
    body = as_user(USER_MONITOR, pages)
    check("a monitor's pages have all of these", all(secret.hex() in body for secret in secrets.values()))

    def crowd():
        connections = [wire.Connection(path) for _ in range(12)]
        told = []
        for connection in connections:
            try:
                told.append(connection.call(wire.message(wire.STATUS, wire.query()))[0])
            except OSError:
                told.append(None)
        others = wire.Connection(node.clients + "/broker.sock")
        return [told.count(wire.STATUS + 1), others is not None]

    served = as_user(USER_OTHER, crowd)
    check("a user has some places at a time, and no more", served[0] == 4, served)

    def hold():
        connections = [wire.Connection(path) for _ in range(12)]
        ran = node.run(USER_ONE, "status")
        return [ran[0], ran[2], len(connections)]

    # Root for the fork alone: the places that it takes are one user's, too.
    told = as_user(ROOT, hold)
    check("another user is served meanwhile", told[0] == 0, told)


class Crowd:
    """Users who do all that they may to keep the places for looking, each in a process of its own."""

    def __init__(self, node, first, count, act):
        self.pids = []
        for uid in range(first, first + count):
            pid = os.fork()
            if pid == 0:
                try:
                    become((uid, [uid]))
                    act(node.clients + "/view.sock")
                finally:
                    os._exit(0)
            self.pids.append(pid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def watch_twice(path):
    connections = [wire.Connection(path) for _ in range(2)]
    for connection in connections:
        connection.send(wire.message(wire.WATCH, struct.pack("<IIQII", 0, 0, 0, 0, 0)))
    signal.pause()


def ask_for_ever(path):
    """Four connections, each of which comes again when it has ended."""
    connections = [None] * 4
    while True:
        for index, connection in enumerate(connections):
            try:
                if connection is None:
                    connections[index] = connection = wire.Connection(path)
                if connection.call(wire.message(wire.STATUS, wire.query()))[0] != wire.STATUS + 1:
                    connections[index] = None
            except OSError:
                connections[index] = None


def crowd(node):
    """Others are served, whatever some users do."""
    def connections():
        return len(os.listdir("/proc/%d/fd" % node.broker.pid))

    def has_come(before):
        # At one moment: watches above their own bound soon lose their places again.
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if connections() >= before + 20:
                return True
            time.sleep(0.002)
        return False

    for count, do, what in [(16, watch_twice, "watch twice each"), (16, ask_for_ever, "ask without a pause")]:
        before = connections()
        with Crowd(node, 61020, count, do):
            check("%d users %s: they have come" % (count, what), has_come(before))
            for who, name in [(USER_OTHER, "another user"), (USER_MONITOR, "a monitor"), (ROOT, "root")]:
                told = [node.run(who, "status")[::2] for _ in range(5)]
                check("%d users %s: %s is served each time" % (count, what, name), told == [(0, "")] * 5, told)
            status, _, errors = node.run(USER_MONITOR, "watch", "--since", "all", "--no-follow")
            check("%d users %s: a monitor may watch" % (count, what), status == 0, errors)


def audit(node, one, other, handles, own):
    """Each user's own leaks."""
    fd_one, fd_other = one("leak", handles[1])["fd"], other("leak", own)["fd"]
    found = {}
    for who, name in [(USER_ONE, "one"), (USER_OTHER, "other"), (ROOT, "root")]:
        report = node.json(who, "audit")
        found[name] = {(it["pid"], fd) for it in report["findings"] for fd in it["fds"]}
        found[name, "scope"] = report["scope"]
        found[name, "text"] = json.dumps(report)
    check("audit names a user their own leak", (one.pid, fd_one) in found["one"] and (other.pid, fd_other) in found["other"], found)
    check("audit says nothing of another user's", {pid for pid, _ in found["one"]} <= {one.pid} and {pid for pid, _ in found["other"]} <= {other.pid}, found)
    check("audit by root names both", {(one.pid, fd_one), (other.pid, fd_other)} <= found["root"], found)
    check("audit says whose it is", (found["one", "scope"], found["root", "scope"]) == ("own", "node"))
    words = [str(ONE), str(one.pid), "secret-rank"]
    # It sees the whole ledger, and may read none of its processes.
    status, text, errors = node.run(USER_MONITOR, "audit")
    check("audit by a monitor is no success, and says what it could not look at", status == 1 and "incomplete: " in text, status, text, errors)
    status, text, errors = node.run(USER_MONITOR, "audit", "--pid", str(one.pid))
    check("of one process, too", status == 1 and "incomplete: 1 process" in text, status, text, errors)
    check("audit of a user has no trace of another", not traces(found["other", "text"], words), found["other", "text"])


def refuse(node, one, other):
    """The largest holder of a full node."""
    told = []
    for actor in [one, other]:
        for _ in range(64):
            answer = actor("register", 4096, 0)
            if answer["status"]:
                told.append((actor.pid, answer["pid"]))
                break
    check("both are refused at last", len(told) == 2, told)
    check("a refusal names no process of another user", all(pid in (0, own) for own, pid in told), told)
    events = node.run(ROOT, "watch", "--since", "all", "--no-follow", "--json")[1].splitlines()
    refusals = [it for it in map(json.loads, events) if it["event"] == "refusal" and it.get("uid") == OTHER]
    check("root is told who holds most", any(str(one.pid) in json.dumps(it) for it in refusals), refusals)
    text = node.run(USER_OTHER, "watch", "--since", "all", "--no-follow", "--json")[1]
    check("the user's own events name nobody else", "refusal" in text and not traces(text, [str(one.pid), str(ONE)]), text)


def go_on(node):
    """A takeover, a restart and the end."""
    old = node.broker
    node.broker = node.start("--takeover")
    old.wait(PATIENCE_S)
    told = node.json(USER_OTHER, "clients")
    check("after a takeover a user is shown their own", [it["uid"] for it in told["clients"]] == [OTHER], told)
    node.broker.terminate()
    node.broker.wait(PATIENCE_S)
    check("the socket ends with the broker", not os.path.exists(node.clients + "/view.sock"))
    status, _, errors = node.run(USER_OTHER, "status")
    check("without a broker a user is told that none answers", status == 3 and "view.sock" in errors, status, errors)
    node.broker = node.start()
    check("after a restart a user is shown their own", node.json(USER_OTHER, "status").get("scope") == "own")
    mode = os.stat(node.clients + "/view.sock").st_mode & 0o777
    check("everybody may connect", mode == 0o666, oct(mode))


def main():
    node = Node(sys.argv[1])
    try:
        one, other, handles, own = see(node)
        ask_raw(node, handles, own)
        say(node)
        share(node, one, other)
        act(node, handles, own)
        audit(node, one, other, handles, own)
        refuse(node, one, other)
        crowd(node)
        go_on(node)
    finally:
        node.end()
    print("%d passed, %d failed" % (passed, failed))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
