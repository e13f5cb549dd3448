#!/bin/bash
# Runs each program of this folder under a private broker: what forked children see of memory that their parent has mapped. Ends
# with `N passed, N failed`. Must never pass a test that did not run: a missing tool is named.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."

case ${1-} in
  -h | --help)
    cat << 'HELP'
usage: tests/fork/run.sh [NAME]...

Builds libfdbroker, fdbrokerd and fdbroker (tests/programs.py), compiles each *.c of this folder with gcc (CC names another
compiler), and runs each of them, and each *.py with the Python package in place, by `fdbroker run`. With names, only the
programs NAME.c and NAME.py. A program prints a line that begins with `ok` or `FAIL` for each of its cases; without any it is one
case. No root is needed.
HELP
    exit 0 ;;
  -*) echo "tests/fork/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

cc=${CC:-gcc}
for tool in "$cc" python3; do
  command -v "$tool" > /dev/null || { echo "$tool is not installed; run: sudo tests/install.sh"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/../common/checks.sh"

target=$(tests/programs.py) || { echo "0 passed, 1 failed"; exit 1; }
export FDBROKER=$target/fdbroker FDBROKERD=$target/fdbrokerd LD_LIBRARY_PATH=$target/capi FDBROKER_LOG=error
export FDBROKER_LIBRARY=$target/capi/libfdbroker.so.0 FDBROKER_BIN_DIR=$target PYTHONPATH=$PWD/libclient/python
export PYTHONDONTWRITEBYTECODE=1
unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET XDG_RUNTIME_DIR LD_PRELOAD

# program NAME COMMAND...: runs a program and counts the cases that it prints.
program() {
  local name=$1 status=0 p f; shift
  timeout --kill-after=5 240 "$FDBROKER" run -- "$@" > "$work/out" 2> "$work/err" < /dev/null || status=$?
  cat "$work/out"
  p=$(grep -c '^ok ' "$work/out") f=$(grep -c '^FAIL' "$work/out")
  if [ $((p + f)) = 0 ] && [ "$status" = 0 ] && ! grep -q '^not run' "$work/out"; then p=1; echo "ok    $name"; fi
  # A program that died, or that says so by its status alone, has failed.
  if [ "$status" != 0 ] && [ "$f" = 0 ]; then f=1; echo "FAIL  $name: exit status $status"; fi
  [ "$f" = 0 ] || sed 's/^/      /' "$work/err" | tail -n 40
  passed=$((passed + p)) failed=$((failed + f))
}
is_wanted() { # NAME, and what the command line names
  local name=$1 one; shift
  [ $# = 0 ] && return
  for one in "$@"; do [ "$name" != "$one" ] || return 0; done
  return 1
}
for source in "$here"/*.c; do
  name=$(basename "$source" .c)
  is_wanted "$name" "$@" || continue
  check "$name.c compiles" "$cc" -std=gnu11 -g -O1 -Wall -Wextra -Werror -I libclient/capi/include -I tests/capi "$source" \
    -o "$work/$name" -L "$target/capi" -lfdbroker -lpthread -ldl
  [ -x "$work/$name" ] && program "$name" "$work/$name"
done
for source in "$here"/*.py; do
  name=$(basename "$source" .py)
  # It has hundreds of allocations at once.
  [ -e "$source" ] && is_wanted "$name" "$@" && has_fds "$name.py" 2048 && program "$name" python3 "$source"
done

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
