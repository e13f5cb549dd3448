# Counts and checks of a script, to be sourced: it has its folder for the time of the test in `work`. Must never end the script.
# shellcheck shell=bash

passed=0 failed=0
ok() { passed=$((passed + 1)); echo "ok    $1"; }
fail() { failed=$((failed + 1)); echo "FAIL  $1"; }
# check NAME COMMAND...: one test that is a command; its output is shown when it fails.
check() {
  local name=$1; shift
  if "$@" > "$work/out" 2>&1; then ok "$name"; else fail "$name"; sed 's/^/      /' "$work/out" | tail -n 40; fi
}
