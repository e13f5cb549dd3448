#!/bin/bash
# Runs the hostile clients against the daemon: README.md says how to read the table. Must never leave a process behind, nor
# show times (--measure) of a daemon that is built otherwise than users' are.
# Arguments: --help.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
. tests/common/release.sh
case " $* " in
  *" --measure "*) program=$(release_program fdbrokerd hostile) ;;
  *) program=$(tests/programs.py hostile) ;;
esac
exec "$program" "$@"
