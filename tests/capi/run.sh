#!/bin/bash
# Builds the C ABI and runs its C tests: shared, static, C++ and dlopen, then the main ones under valgrind. Ends with
# the line `N passed, N failed`. Must never pass a test that did not run: a missing tool is named.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
root=$(readlink -f "$here/../..")

case ${1-} in
  '') ;;
  -h | --help)
    cat << 'HELP'
usage: tests/capi/run.sh

Builds libfdbroker, fdbrokerd and fdbroker, compiles the C programs of this folder with gcc and g++, and runs
each against private brokers of its own, bounded in time; no root needed. CC, CXX and VALGRIND name other programs than
gcc, g++ and valgrind. VALGRIND= leaves valgrind out: its tests are then named as not run, and with CI set they count as
failed.
HELP
    exit 0 ;;
  *) echo "tests/capi/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

cc=${CC:-gcc} cxx=${CXX:-g++} valgrind=${VALGRIND-valgrind}
for tool in "$cc" "$cxx" nm readelf; do
  command -v "$tool" > /dev/null || { echo "$tool is not installed; run: sudo tests/install.sh"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/../common/checks.sh"

echo "== build"
cd "$root"
if ! target=$(tests/programs.py); then
  fail "the library and the programs are built"; echo "$passed passed, $failed failed"; exit 1
fi
include=$root/libclient/capi/include header=$root/libclient/capi/include/fdbroker.h
library=$target/capi/libfdbroker.so.0
export FDBROKERD=$target/fdbrokerd FDBROKER=$target/fdbroker LD_LIBRARY_PATH=$target/capi FDBROKER_LOG=error
unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET XDG_RUNTIME_DIR

echo "== header and symbols"
for standard in c99 c11 c17; do
  check "the header is clean $standard" \
    "$cc" -std=$standard -Wall -Wextra -Werror -pedantic -fsyntax-only -x c "$header"
done
for standard in c++11 c++20; do
  check "the header is clean $standard" \
    "$cxx" -std=$standard -Wall -Wextra -Werror -pedantic -fsyntax-only -x c++ "$header"
done
exported() { readelf -W --dyn-syms "$library" | awk '/ (GLOBAL|WEAK) / && !/ UND / { print $8 }' | sort; }
declared() { grep -oE '\bfdbroker_[a-z_]+\(' "$header" | sort -u | sed 's/(/@@FDBROKER_0/'; }
exports_what_is_declared() { diff <(declared) <(exported | grep -v '^FDBROKER_0$'); }
check "the library exports what the header declares, each with its version, and nothing else" exports_what_is_declared
has() { readelf -d "$library" | grep -qE "$1"; }
check "the soname is libfdbroker.so.0" has 'SONAME.*\[libfdbroker\.so\.0\]'
check "dlclose leaves the code in place" has 'FLAGS_1.*NODELETE'

echo "== programs"
flags=(-std=c11 -g -O1 -Wall -Wextra -Werror -I "$include")
read -r -a static_libs < "$target/capi/native-libs"
compile() { # NAME: compiled with the shared library, or without it (unload)
  local link=(-L "$target/capi" -lfdbroker)
  [ "$1" = unload ] && link=(-rdynamic -ldl)
  "$cc" "${flags[@]}" "$here/$1.c" -o "$work/$1" "${link[@]}" -lpthread
}
# Whether there can be as many fds here as a program needs for itself and its broker.
can_run() {
  case $1 in
    share | request | caps) has_fds "C ABI: $1" 2048 ;;
  esac
}
# start FILE SECONDS COMMAND...: runs a program; its output goes to FILE.out and FILE.err.
start() {
  local file=$1 seconds=$2; shift 2
  timeout --kill-after=5 "$seconds" "$@" > "$file.out" 2> "$file.err" < /dev/null
}
# tally NAME STATUS FILE: counts the cases that it has printed.
tally() {
  local name=$1 status=$2 file=$3 p f
  cat "$file.out"
  p=$(grep -c '^ok ' "$file.out") f=$(grep -c '^FAIL' "$file.out")
  # A program that died, or that printed no case, has failed.
  if [ $((p + f)) = 0 ] || { [ "$status" != 0 ] && [ "$f" = 0 ]; }; then
    f=$((f + 1)); echo "FAIL  $name: exit status $status"
  fi
  [ "$f" = 0 ] || sed 's/^/      /' "$file.err" | tail -n 60
  passed=$((passed + p)) failed=$((failed + f))
}
run() { # NAME SECONDS COMMAND...: both
  local name=$1 status=0; shift
  start "$work/run" "$@" || status=$?
  tally "$name" "$status" "$work/run"
}
# The broker stays stopped for 10 s, twice. That takes no processor, so it runs beside the others.
check "stopped.c compiles" compile stopped
start "$work/stopped" 280 "$work/stopped" 10000 &
stopped=$!
programs=(basics share batches remedies request waits objects events opener checkpoint threads forked lost crashes fdlimit maps unload)
for name in "${programs[@]}"; do
  check "$name.c compiles" compile "$name"
  [ -x "$work/$name" ] && can_run "$name" && run "$name" 280 "$work/$name"
done

check "caps.c compiles" compile caps
[ -x "$work/caps" ] && can_run caps && run "caps" 120 python3 "$here/caps.py" "$header" "$work/caps"

check "share.c links with the static library" \
  "$cc" "${flags[@]}" "$here/share.c" -o "$work/static" "$target/capi/libfdbroker.a" "${static_libs[@]}"
needs_no_library() { ! readelf -d "$work/static" | grep -q libfdbroker; }
check "the static program needs no libfdbroker.so" needs_no_library
[ -x "$work/static" ] && can_run share && run "static" 280 "$work/static"

check "cpp.cpp compiles" \
  "$cxx" -std=c++11 -Wall -Wextra -Werror -I "$include" "$here/cpp.cpp" -o "$work/cpp" -L "$target/capi" -lfdbroker
cpp() {
  mkfifo "$work/ready" "$work/life"
  "$FDBROKERD" --private "$work/broker" --log error --ready-fd 9 --until-eof 8 9> "$work/ready" 8< "$work/life" &
  # In the order in which the broker's shell opens them: either open waits for the other.
  exec 6< "$work/ready" 7> "$work/life"
  read -r _ <&6
  "$work/cpp" "$work/broker/fdbroker/broker.sock"
  local status=$?
  exec 7>&-
  wait
  return $status
}
[ -x "$work/cpp" ] && run "cpp" 60 bash -c "$(declare -f cpp); work='$work' cpp"

if [ -n "$valgrind" ] && command -v "$valgrind" > /dev/null; then
  echo "== valgrind"
  memcheck=("$valgrind" --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite
    --errors-for-leak-kinds=definite --fair-sched=yes)
  for name in basics share batches remedies request events checkpoint stopped; do
    can_run "$name" && run "$name under valgrind" 300 "${memcheck[@]}" "$work/$name"
  done
  run "lost under valgrind" 300 "${memcheck[@]}" "$work/lost" 20000
  run "threads under valgrind" 300 "${memcheck[@]}" "$work/threads" 6 1500
  # Not for leaks: a child has the memory that the parent's other threads pointed to, but not their stacks.
  run "opener under valgrind" 300 "${memcheck[@]}" --leak-check=no "$work/opener"
  run "objects under valgrind" 300 "${memcheck[@]}" --leak-check=no "$work/objects"
  run "forked under valgrind" 300 "${memcheck[@]}" --leak-check=no "$work/forked" 5
else
  not_run "the C tests under valgrind" "it is not installed; run: sudo tests/install.sh"
fi

status=0
wait "$stopped" || status=$?
tally "a broker stopped for 10 s" "$status" "$work/stopped"

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
