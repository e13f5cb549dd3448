#!/bin/bash
# Runs the simulator of the core, optimised: at least a million steps unless told otherwise. Must never be decided by a
# clock: a seed replays exactly. Arguments are the simulator's (-h): --steps N, --seed N, --config NAME, --soak, --trace.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
# Run by itself, not by cargo: Ctrl-C is to reach the simulator alone, which then prints its totals.
program=$(tests/programs.py sim)
exec "$program" "$@"
