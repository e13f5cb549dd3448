#!/bin/bash
# Runs the simulator of the core, as the other tests are built: 1.2 million steps unless told otherwise. Must never depend on
# a clock: a seed replays exactly.
# Arguments: --release (a faster build, for long runs), then those of the simulator (--help): --steps N, --seed N, ...
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. tests/common/release.sh
if [ "${1-}" = --release ]; then
  shift
  program=$(release_program fdbroker-core sim)
else
  program=$(tests/programs.py sim)
fi
# Not by cargo: Ctrl-C is to reach only the simulator, which then prints its totals.
exec "$program" --steps 1200000 "$@"
