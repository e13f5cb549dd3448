#!/bin/bash
# Runs the end-to-end tests (tests/e2e) in the virtual machine, on real dma-bufs (arenas by udmabuf, isolated memory of
# the dma-heap) and as root. It never builds for the guest: the programs are this machine's. Prints the test program's
# own output, `test result:` line included.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

case ${1-} in
  -h | --help)
    echo "usage: tests/vm/e2e.sh [FILTER | OPTION]...    (as for any Rust test program, such as: recall --test-threads=1)"
    exit 0 ;;
esac

tests=$(tests/programs.py e2e)
daemon=$(tests/programs.py)/fdbrokerd

exec tests/vm/run.sh -t 1800 -f "$daemon" -e FDBROKERD=/t/fdbrokerd -e FDBROKER_TEST_MEMORY=udmabuf -e CI=true \
  -e TMPDIR=/tmp "$tests" "$@"
