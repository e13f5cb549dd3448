"""The parts of run.py that run one program directly and under the CUDA layer in turns, and compare the two. Must never say that
something passed that was not run: it is named, with the reason.
"""

import json
import os
import signal
import statistics
import subprocess
import time

# One run of a program of this file.
PATIENCE_S = 120
# How long a broker is away.
AWAY_S = 5
# What the layer keeps of what was closed, at most (KEPT_FDS of libclient/layer).
KEPT_FDS = 16
TURNS = [("direct", None), ("layer", 256), ("layer, again", 256), ("direct, again", None)]


def in_turns(bench, what, program, role, turns, size=1, more=()):
    """Runs it in turns, and checks what holds for each; the lines that it printed in each turn."""
    found = {}
    for turn, cap in turns:
        name = f"{what}, {turn}"
        lines = bench.run(name, ["--program", program, "--fds", 4096, *more], cap, PATIENCE_S)
        said = found[turn] = bench.of(lines, role)
        reasons = {it["not_run"] for it in said if "not_run" in it}
        if reasons:
            print(f"not run: {name}: {'; '.join(sorted(reasons))}", flush=True)
            return {}
        codes = bench.of(lines, "exit")
        right = len(said) == size and not any(it.get("wrong") for it in said) and codes and codes[0]["codes"] == [0]
        bench.book.check(f"{name}: every byte is right", right, lines)
        if cap:
            bench.left(name, lines, cap)
        bench.device_rows.append((name, {**(said[0] if said else {}), **(bench.of(lines, "broker") or [{}])[0]}))
    return found


def ratios(bench, what, found, keys):
    """Of the medians under the layer to those directly, beside each other."""
    def of(side, key):
        values = [it[key] for turn, said in found.items() if side in turn for it in said if it.get(key)]
        return statistics.mean(values) if values else None

    for key in keys:
        direct, layer = of("direct", key), of("layer", key)
        if direct and layer:
            bench.ratio_rows.append(f"{what}, {key}: direct {direct:.1f}, layer {layer:.1f}, ratio {layer / direct:.2f}")


def fds(bench, what, found, kept=0):
    most = {turn: max((it["new_nvidia_fds"] for it in said), default=None) for turn, said in found.items()}
    layer, direct = ([count for turn, count in most.items() if side in turn] for side in ("layer", "direct"))
    bench.book.check(f"{what}: no process has more fds under the layer than directly",
                     None not in most.values() and max(layer) <= max(direct, default=0) + kept, most)


def loader(bench):
    """A DataLoader's workers, whose segments are opened again and again."""
    found = in_turns(bench, "DataLoader", "loader.py", "loader", TURNS)
    ratios(bench, "DataLoader", found, ["open_us", "free_us", "seconds"])
    # What is opened again and again the layer keeps for 20 ms.
    fds(bench, "DataLoader", found, KEPT_FDS)


def sleep(bench):
    """All memory given up while a consumer has it, or has had it, and made again."""
    found = in_turns(bench, "asleep", "asleep.py", "asleep", TURNS)
    for turn, said in found.items():
        bench.book.check(f"asleep, {turn}: each time all memory was back in seconds", said and said[0]["back"], said)
    ratios(bench, "asleep", found, ["sleep_us", "wake_us", "open_us", "back_ms"])
    fds(bench, "asleep", found)


def checkpoint(bench):
    """What a checkpoint does to a process that has exported memory is what it does to it directly."""
    found = in_turns(bench, "cuCheckpoint", "frozen.py", "frozen", TURNS[:2])
    if not all(found.get(turn) for turn, _ in TURNS[:2]):
        return
    direct, layer = (found[turn][0] for turn, _ in TURNS[:2])
    steps = ["Lock", "Checkpoint", "Restore", "Unlock"]
    refused = [f"{step} answers {direct[step]}" for step in steps if direct.get(step)]
    if refused:
        print(f"not run: cuCheckpoint of a process that has exported memory: directly {refused[0]}; under the layer: {layer}", flush=True)
        return
    bench.book.check("cuCheckpoint, layer: each step succeeds", all(layer.get(step) == 0 for step in steps), layer)
    for what, good in (("its own", {"wrong": 0}), ("what was exported", "right"), ("exported again", "right"),
                       ("exported for the first time", "right")):
        if direct.get(what) == good:
            bench.book.check(f"cuCheckpoint, layer: right as directly, {what}", layer.get(what) == good, layer)
        else:
            print(f"not run: cuCheckpoint, {what}: directly {direct.get(what)}; under the layer {layer.get(what)}", flush=True)


def outages(bench):
    """Brokers that are killed, and one that is away, while eight workers share."""
    name = "torch.multiprocessing, its broker killed three times, once for seconds"
    lines = bench.run(name, ["--program", "workers.py", "--rounds", 200, "--fds", 1024, "--outages"], 256, PATIENCE_S)
    done, broker, seen = bench.of(lines, "workers"), bench.of(lines, "broker"), bench.of(lines, "outages")
    right = done and not done[0]["wrong"] and not any(done[0]["exit"])
    bench.book.check(f"{name}: every tensor is right in 8 workers", right, lines)
    bench.book.check(f"{name}: all three came while memory was shared, and it went on",
                     seen and seen[0]["went_on"] == [True] * 3 and broker and broker[0]["grants"] > 0, [seen, broker])
    bench.layered(name, lines, 256)


def weights(bench):
    """The same weights in eight processes, by name and from a file."""
    lines = bench.run("weights", ["--program", "weights.py", "--fds", 1024], 256, PATIENCE_S)
    said, codes = bench.of(lines, "weights"), bench.of(lines, "exit")
    bench.book.check("weights: every byte is right in eight processes, by name and from the file",
                     said and not said[0]["wrong"] and codes and codes[0]["codes"] == [0], lines)
    bench.left("weights", lines, 256)
    if not said:
        return
    found = said[0]
    bench.book.check("weights: by name they are in memory once", found["name_gib"] < 1.1 * found["gib"], found)
    if found["without"]:
        print(f"not run: weights from a file: python3 has no {found['without']}", flush=True)
    bench.device_rows.append(("weights", found))


def groups(bench, what, size):
    """A process on each GPU."""
    # NCCL's own allocator makes what it registers, if PyTorch's segments do not.
    expandable = "off" if what == "windows" else "on"
    turns = TURNS[1:2] if what == "names" else TURNS[:2]
    more = ["--what", what, "--expandable", expandable, "--size", size]
    found = in_turns(bench, f"{what}, {size} GPUs", "devices.py", "device", turns, size, more)
    if not found:
        return
    if "direct" in found:
        fds(bench, what, found)
        keys = sorted({key for said in found.values() for it in said for key in it if key.endswith("_us")})
        ratios(bench, f"{what}, {size} GPUs", found, keys)
    if what in ("ddp", "fsdp"):
        trained = [sorted((it["rank"], it["losses"], it["bits"]) for it in said) for said in found.values()]
        bench.book.check(f"{what}: losses and weights are those of the direct run, bit by bit",
                         trained[0] and trained[0] == trained[1], trained)


# --- the inner part ---


def serving():
    """The pid of the broker that serves, and how many grants it has made; none while there is none."""
    command = [os.environ["FDBROKER"], "status", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=PATIENCE_S / 4)
    status = json.loads(done.stdout) if done.returncode == 0 else {}
    return status.get("pid"), status.get("grants", 0)


def kill_brokers(process):
    """Kills the broker three times while `process` shares memory. `fdbroker run`, which starts it again, is stopped meanwhile the second time."""
    ended, went_on, launcher = [], [], os.getppid()
    for away_s in (0, AWAY_S, 0):
        until = time.monotonic() + PATIENCE_S / 2
        while True:
            pid, grants = serving()
            if pid and pid not in ended and grants:
                break
            if process.poll() is not None or time.monotonic() > until:
                return {"role": "outages", "went_on": went_on, "error": f"no other broker with grants: {pid} has {grants}"}
            time.sleep(0.05)
        if away_s:
            os.kill(launcher, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        time.sleep(away_s)
        os.kill(launcher, signal.SIGCONT)
        ended.append(pid)
        went_on.append(process.poll() is None)
    return {"role": "outages", "went_on": went_on}
