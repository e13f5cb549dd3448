#!/bin/bash
# Programs that close fds which they do not know, and have files, pipes and sockets of their own there: in C, in Python, and under
# both layers. Ends with `N passed, N failed`. Must never pass a test that did not run: a missing tool is named.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."

case ${1-} in
  '') ;;
  -h | --help)
    cat << 'HELP'
usage: tests/closed_fds/run.sh

Builds the library, the layers, fdbrokerd and fdbroker (tests/programs.py), compiles the C programs of this folder with gcc (CC
names another compiler) and runs them, the Python program over the library, and the layers' programs against the stand-ins for the
drivers. No root is needed; as root one more case becomes another user. The cases of the Rust library are in
libclient/tests/it/closed_fds.rs.
HELP
    exit 0 ;;
  *) echo "tests/closed_fds/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

cc=${CC:-gcc}
for tool in "$cc" python3; do
  command -v "$tool" > /dev/null || { echo "$tool is not installed; run: sudo tests/install.sh"; exit 77; }
done
work=$(mktemp -d)
memory=$(mktemp -d -p /dev/shm fdbroker-closed-fds-XXXXXX)
trap 'rm -rf "$work" "$memory"' EXIT
. "$here/../common/checks.sh"

target=$(tests/programs.py) || { echo "0 passed, 1 failed"; exit 1; }
export FDBROKER=$target/fdbroker FDBROKERD=$target/fdbrokerd FDBROKER_LOG=info
unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET XDG_RUNTIME_DIR LD_PRELOAD

# program NAME COMMAND...: runs a program and counts the cases that it prints.
program() {
  local name=$1 status=0 p f; shift
  timeout --kill-after=5 280 "$@" > "$work/$name.out" 2> "$work/$name.err" || status=$?
  sed "s/^\(ok  *\|FAIL *\)/&$name: /" "$work/$name.out"
  p=$(grep -c '^ok ' "$work/$name.out") f=$(grep -c '^FAIL' "$work/$name.out")
  # A program that died, or that printed no case, has failed.
  if [ $((p + f)) = 0 ] || { [ "$status" != 0 ] && [ "$f" = 0 ]; }; then
    f=$((f + 1)); echo "FAIL  $name: exit status $status"
  fi
  [ "$f" = 0 ] || sed 's/^/      /' "$work/$name.err" | tail -n 40
  passed=$((passed + p)) failed=$((failed + f))
}
compile() { "$cc" -std=gnu11 -g -O1 -Wall -Wextra -Werror -Ilibclient/capi/include "$here/$1.c" -o "$work/$1" "${@:2}" -lpthread; }

check "library.c compiles" compile library -L"$target/capi" -lfdbroker "-Wl,-rpath,$target/capi"
[ -x "$work/library" ] && program library "$work/library"
program python env "FDBROKER_LIBRARY=$target/capi/libfdbroker.so.0" "FDBROKER_BIN_DIR=$target" PYTHONPATH=libclient/python \
  python3 "$here/program.py"

check "the stand-in for the CUDA driver compiles" "$cc" -shared -fPIC -O2 -o "$work/libcuda.so.1" tests/cuda_stub/libcuda.c
check "looks.c compiles" "$cc" -shared -fPIC -O2 -Wall -Wextra -Werror -o "$work/looks.so" tests/cuda_stub/looks.c
check "cuda.c compiles" compile cuda
[ -x "$work/cuda" ] && program cuda env "LD_LIBRARY_PATH=$work" "FDBROKER_CUDA_STUB_DIR=$memory" EXPECT_LAYER=1 \
  "LD_PRELOAD=$work/looks.so" "$FDBROKER" run --cuda -- "$work/cuda"

check "level_zero.c compiles" compile level_zero -ldl
if [[ $(/sbin/ldconfig -p 2> /dev/null) == *libze_loader.so.1* ]]; then
  [ -x "$work/level_zero" ] && program level_zero env "ZE_ENABLE_ALT_DRIVERS=$target/libfdbroker_ze_test_driver.so" \
    ZE_TEST_DRIVER_HANDLES=legacy "$FDBROKER" run -- env "LD_PRELOAD=$target/libfdbroker_ze.so" "$work/level_zero"
else
  not_run "closed fds under the Level Zero layer" "libze1 is not installed; run: sudo tests/install.sh"
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
