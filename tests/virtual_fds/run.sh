#!/bin/bash
# Runs plain C programs, which know nothing of fdbroker, under a small layer (layer/) with real brokers: what each call does
# with a virtual fd. Ends with `N passed, N failed`. Must never pass a test that did not run: a missing tool is named.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."

case ${1-} in
  '') ;;
  -h | --help)
    cat << 'HELP'
usage: tests/virtual_fds/run.sh

Builds the layer, fdbrokerd and fdbroker (tests/programs.py), compiles the C programs of this folder with gcc (CC names
another compiler), and runs each by `fdbroker run` with the layer preloaded. No root is needed.
By hand:
  gcc -g tests/virtual_fds/calls.c -o /tmp/calls
  FDBROKER=$PWD/target/debug/fdbroker target/debug/fdbroker run -- \
    env LD_PRELOAD=$PWD/target/debug/libfdbroker_virtual_fds_test_layer.so /tmp/calls
HELP
    exit 0 ;;
  *) echo "tests/virtual_fds/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

cc=${CC:-gcc}
for tool in "$cc" readelf; do
  command -v "$tool" > /dev/null || { echo "$tool is not installed; run: sudo tests/install.sh"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/../common/checks.sh"

target=$(tests/programs.py) || { echo "0 passed, 1 failed"; exit 1; }
layer=$target/libfdbroker_virtual_fds_test_layer.so
export FDBROKER=$target/fdbroker FDBROKER_LOG=error
unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET XDG_RUNTIME_DIR LD_PRELOAD

# What the layer puts before the C library, in the order of the alphabet; nothing else of it is to be seen.
interposed='_Fork __fxstat __fxstat64 __poll_chk __ppoll_chk clone close close_range closefrom dup dup2 dup3 epoll_ctl fcntl fcntl64 fstat
  fstat64 ftruncate ftruncate64 ioctl lseek lseek64 mmap mmap64 pidfd_getfd pidfd_open pidfd_send_signal poll ppoll pread
  pread64 pwrite pwrite64 read sendmmsg sendmsg syscall waitid write'
exported() { readelf -W --dyn-syms "$1" | awk '/ (GLOBAL|WEAK) / && !/ UND / { print $8 }' | sed 's/@.*//' | LC_ALL=C sort -u; }
exports_the_interposed() { diff <(printf '%s\n' $interposed test_export test_use_driver | LC_ALL=C sort) <(exported "$layer"); }
check "the layer exports the interposed functions, and nothing else" exports_the_interposed
# A misspelt name would stand in nobody's place. The C library of an old system lacks the pidfd functions.
libc=$(ldd "$FDBROKER" | awk '$1 == "libc.so.6" { print $3 }')
are_the_c_librarys() { ! LC_ALL=C comm -23 <(printf '%s\n' $interposed) <(exported "$libc") | grep -v '^pidfd_'; }
check "they are the C library's" are_the_c_librarys

# program NAME COMMAND...: runs a program and counts the cases that it prints.
program() {
  local name=$1 status=0 p f; shift
  timeout --kill-after=5 240 "$@" > "$work/$name.out" 2> "$work/$name.err" || status=$?
  cat "$work/$name.out"
  p=$(grep -c '^ok ' "$work/$name.out") f=$(grep -c '^FAIL' "$work/$name.out")
  # A program that died, or that printed no case, has failed.
  if [ $((p + f)) = 0 ] || { [ "$status" != 0 ] && [ "$f" = 0 ]; }; then
    f=$((f + 1)); echo "FAIL  $name: exit status $status"
  fi
  [ "$f" = 0 ] || sed 's/^/      /' "$work/$name.err" | tail -n 40
  passed=$((passed + p)) failed=$((failed + f))
}
under_layer=("$FDBROKER" run -- env "LD_PRELOAD=$layer")

for name in calls lifetimes ahead; do
  check "$name.c compiles" "$cc" -std=gnu11 -g -O1 -Wall -Wextra -Werror "$here/$name.c" -o "$work/$name" -lpthread
  [ -x "$work/$name" ] && program "$name" "${under_layer[@]}" "$work/$name"
done

# Two processes make these calls, some of them twice.
said() { [ "$(grep -c "^fdbroker\[[0-9]*\]: $1 of a virtual fd" "$work/calls.err")" = 2 ]; }
for call in read write pread pwrite ftruncate fcntl; do
  check "$call of a virtual fd is said once by each process" said "$call"
done
is_quiet() { ! FDBROKER_LOG=off "${under_layer[@]}" "$work/calls" 2>&1 > /dev/null | grep "of a virtual fd"; }
check "nothing is said with FDBROKER_LOG=off" is_quiet
check "without a broker a virtual fd is a number that nobody has open" \
  env "FDBROKER_SOCKET=$work/none.sock" "LD_PRELOAD=$layer" "$work/lifetimes" is-ended 1073741824

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
