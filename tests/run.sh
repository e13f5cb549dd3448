#!/bin/sh
# Runs every test of the project and ends with the line `N passed, N failed` (tests/run.py, --help).
. "$(dirname "$(readlink -f "$0")")/common/start.sh"
exec python3 "$(dirname "$(readlink -f "$0")")/run.py" "$@"
