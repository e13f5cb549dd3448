#!/bin/bash
# Runs a demo command line that prints JSON, and checks the demo's promises: every byte right, no failure, never more fds
# on the node than the cap. Must never judge by time. Usage: tests/demo.sh COMMAND ... --json
. "$(dirname "$(readlink -f "$0")")/common/start.sh"
set -euo pipefail
out=$("$@")
printf '%s\n' "$out"
[ "$(printf '%s\n' "$out" | wc -l)" = 1 ] || { echo "demo.sh: not exactly one line of JSON" >&2; exit 1; }
printf '%s' "$out" | python3 -c '
import json, sys
demo = json.load(sys.stdin)
fds = demo["fds"]
expected = demo["ranks"] * (demo["ranks"] - 1) * demo["buffers"]
def check(ok, what):
    if not ok:
        sys.exit("demo.sh: " + what)
check(demo["mismatches"] == 0, "bytes differ")
check(demo["failures"] == 0, "something failed")
check(demo["verified_bytes"] > 0 and demo["verified_bytes"] % expected == 0, "not every buffer was verified")
check(0 < fds["node_peak"] <= fds["cap"], "node fds above the cap")
check(0 < fds["broker_peak"] <= fds["node_peak"] and 0 < fds["rank_peak"] <= fds["node_peak"], "peaks do not add up")
'
