#!/bin/bash
# Runs the end-to-end tests (tests/e2e) in the virtual machine, on real dma-bufs (arenas by udmabuf, isolated memory of
# the dma-heap) and as root. It never builds for the guest: the programs are this machine's. Prints the test program's
# own output, `test result:` line included.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

case ${1-} in
  -h | --help)
    echo "usage: tests/vm/e2e.sh [FILTER | OPTION]...    (those of a test program, such as: recall --test-threads=1)"
    exit 0 ;;
esac

# Optimised: the guest is emulated, and unoptimised programs take ten times as long in it.
built=$(cargo test --quiet --release -p fdbrokerd --test e2e --no-run --message-format=json)
executable() { # KIND NAME
  printf '%s\n' "$built" | grep -F "\"kind\":[\"$1\"]" | grep -F "\"name\":\"$2\"" |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}
tests=$(executable test e2e) daemon=$(executable bin fdbrokerd)
[ -x "$tests" ] && [ -x "$daemon" ] || { echo "e2e.sh: cargo named no test program or no daemon" >&2; exit 1; }

exec tests/vm/run.sh -t 600 -f "$daemon" -e FDBROKERD=/t/fdbrokerd -e FDBROKER_TEST_MEMORY=udmabuf -e CI=true \
  -e TMPDIR=/tmp "$tests" "$@"
