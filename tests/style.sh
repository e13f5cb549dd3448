#!/bin/bash
# Checks what the compiler does not: format, lints, documentation, layers, scripts. Ends with the line `N passed, N failed`.
# Builds in a folder of its own (target/style), so that it can run beside tests; it must never change a file of the tree.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

passed=0 failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
check() { # NAME COMMAND...
  local name=$1; shift
  if "$@" > "$log" 2>&1; then
    passed=$((passed + 1)); echo "ok      $name"
  else
    failed=$((failed + 1)); echo "FAILED  $name: $*"; tail -n 60 "$log"
  fi
}
parse_scripts() { local script; for script in $(git ls-files '*.sh' .ci/run); do bash -n "$script" || return 1; done; }
# Test scripts and test programs that start processes begin alike under any parent (tests/common). tests/vm/run.sh is a tool
# of tests, and the tests of the protocol and the core start nothing.
alike() {
  local file status=0
  for file in $(git ls-files 'tests/*/run.sh' tests/run.sh tests/demo.sh ':!tests/vm/run.sh'); do
    grep -q 'common/start\.sh' "$file" || { echo "$file does not source tests/common/start.sh"; status=1; }
  done
  for file in $(git ls-files '*tests/it/main.rs' tests/e2e/main.rs tests/hostile/main.rs ':!libclient/protocol' ':!broker/core'); do
    grep -q 'common/mod\.rs' "$file" || { echo "$file has no module tests/common/mod.rs"; status=1; }
  done
  return "$status"
}

# The loop reads and sets up only ends that nobody else has: a recvmsg or setsockopt on an end that a client has waits for that socket's
# mutex, for ever if the client likes. So the daemon makes no pair of sockets of which it gives an end away, but for carriers.
own_ends() {
  # A test's pair, the pairs of the loop and its own lanes, and the carriers.
  local allowed='broker/src/fds/(carrier|classify|closers)\.rs'
  ! git grep -nE 'seqpacket_pair|socketpair\(|UnixDatagram::pair|UnixStream::pair' -- 'broker/src/server' 'broker/src/clients' 'broker/src/messages' 'broker/src/fds' \
    | grep -vE "^$allowed:"
}

# Comments are read beside the code, so they are as narrow; a table's row has to be one line, and an address.
narrow() {
  local wide
  wide=$(git ls-files '*.rs' | xargs awk 'length($0) > 100 && /^ *\/\// && !/^ *\/\/[\/!] +\|/ && !/https?:/ {print FILENAME ":" FNR ": " $0}')
  [ -z "$wide" ] || { echo "$wide"; return 1; }
}
# A comment that repeats a name, or points at nothing.
empty_words() { ! git grep -nE '^\s*///? ?(The same|Why|Bytes|Whose|How many|As registered)\.$' -- '*.rs'; }
# A file is a room with a purpose: what has fewer than 15 lines belongs into the room where it is used, unless it names rooms.
rooms() {
  local small
  # The file of a module's unit tests is where that module is.
  small=$(git ls-files '*.rs' ':!*/tests/unit/*' | grep -vE '(^|/)(mod|lib|main|build)\.rs$' | xargs wc -l | awk '$1 < 15 && $2 != "total"')
  [ -z "$small" ] || { echo "$small"; return 1; }
}

# Each test and each hostile scenario that SECURITY.md names is there.
named() {
  local name status=0 tests
  tests=$(git grep -hoE 'fn [a-z0-9_]+_when_[a-z0-9_]+' -- '*.rs')
  for name in $(grep -oE '`[a-z0-9_]+_when_[a-z0-9_]+`' SECURITY.md | tr -d '`' | sort -u); do
    grep -qx "fn $name" <<< "$tests" || { echo "SECURITY.md names $name: there is no such test"; status=1; }
  done
  for name in $(tr '\n' ' ' < SECURITY.md | grep -oE 'hostile: [a-z0-9, -]+' | sed 's/hostile: //; s/,/ /g'); do
    grep -q "\"$name\"" tests/hostile/scenarios.rs || { echo "SECURITY.md names $name: there is no such scenario"; status=1; }
  done
  return "$status"
}

# The library for host memory alone, and for one driver: nothing of the others is compiled or linked to, and nothing of what is left is unused.
with_features() {
  local features
  for features in '' cuda level-zero; do
    cargo clippy -p fdbroker-client --quiet --no-default-features --features "$features" -- -D warnings || return 1
    RUSTDOCFLAGS="-D warnings" cargo doc -p fdbroker-client --quiet --no-deps --no-default-features --features "$features" || return 1
  done
  ! cargo tree -p fdbroker-client --edges normal --no-default-features | grep -E 'level-zero|libloading'
}

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/style
check "cargo fmt" cargo fmt --all --check
check "cargo fmt, fuzz targets" cargo fmt --check --manifest-path tests/fuzz/Cargo.toml
check "cargo clippy" cargo clippy --workspace --all-targets --quiet -- -D warnings
check "the library with each feature alone, and with none" with_features
check "cargo doc" env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
check "layers" python3 tests/layers/run.py
check "scripts parse" parse_scripts
check "SECURITY.md names tests that exist" named
check "the daemon gives no end of a socket away" own_ends
check "comments are at most 100 columns wide" narrow
check "no comment says nothing" empty_words
check "each file is a room of its own" rooms
check "tests begin alike under any parent" alike
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
