#!/bin/bash
# Runs the hostile clients against the daemon: README.md says how to read the table. Must never leave a process behind.
# Arguments: --help.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
program=$(tests/programs.py hostile)
exec "$program" "$@"
