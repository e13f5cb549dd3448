#!/bin/bash
# Runs the hostile clients against the release daemon: a table of the good client's times, quiet and under attack, its
# errors, and what leaked. Must never leave a process behind. Arguments: --help.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
program=$(tests/programs.py hostile)
exec "$program" "$@"
