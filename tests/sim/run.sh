#!/bin/bash
# Runs the simulator of the core, optimised: at least a million steps unless told otherwise. Must never be decided by a
# clock: a seed replays exactly. Arguments are the simulator's (--help): --steps N, --seed N, --config NAME, --trace.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
exec cargo test --release --quiet -p fdbroker-core --test sim -- "$@"
