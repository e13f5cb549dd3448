#!/bin/sh
# Breaks each promise of the core on purpose, and expects the simulator to notice (mutations.py, --help).
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
exec python3 "$(dirname "$(readlink -f "$0")")/mutations.py" "$@"
