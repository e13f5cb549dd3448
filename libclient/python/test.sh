#!/bin/bash
# Tests the wheel as a user has it: installed by pip in a bare virtual environment, then beside numpy and mpi4py. Ends with
# `N passed, N failed`. Must never test the source tree in place of the wheel, nor pass a test that did not run.
here=$(dirname "$(readlink -f "$0")")
. "$here/../../tests/common/start.sh"
set -uo pipefail
root=$(readlink -f "$here/../..")

wheel='' only=''
if [ "${1-}" = frameworks ]; then only=frameworks; shift; fi
case ${1-} in
  '') ;;
  --wheel) wheel=$(readlink -f "$2") ;;
  -h | --help)
    cat << 'HELP'
usage: libclient/python/test.sh [frameworks] [--wheel FILE]

Builds a wheel of the programs that the tests use (tests/programs.py), or takes FILE. auditwheel, which pip fetches, confirms its
platform tag. Then pip installs it, without a network, in virtual environments of its own:
  bare        nothing else there: memory, threads, fork, asyncio, leaks, the stand-in for CUDA
  numpy       with the system's numpy and mpi4py: these tests again, the examples and every snippet of docs/python.md
With `frameworks`, by hand: beside transformers and Ray, which pip fetches, over the system's PyTorch, and vLLM of the Python that VLLM_PYTHON
names, on the CPU; nothing else.
PYTHON names another interpreter than python3 for the first, PYTHONS a list of further ones for it (default: python3.9, the oldest that
the package is for, where it is installed), AUDITWHEEL an auditwheel that is there. No GPU is needed. free_threaded.sh runs this with a
Python that has no GIL.
HELP
    exit 0 ;;
  *) echo "test.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$root/tests/common/checks.sh"
unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET XDG_RUNTIME_DIR PYTHONPATH PYTHONHOME FDBROKER_LIBRARY FDBROKER_BIN_DIR
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
cd "$root"
python=${PYTHON:-python3}

# By its own path. PYENV_VERSION is for pyenv, whose python3.9 otherwise is there and does not run.
oldest() { PYENV_VERSION=3.9 python3.9 -c 'import sys, venv, ensurepip; print(sys.executable)' 2> /dev/null; }
others=${PYTHONS-$(oldest || true)}

# Debian's python3 has venv without pip unless python3-venv is installed.
"$python" -c 'import venv, ensurepip' 2> /dev/null ||
  { echo "$python cannot make a virtual environment with pip; run: sudo tests/install.sh (python3-venv)"; exit 77; }

if [ -z "$wheel" ]; then
  if ! built=$(tests/programs.py) || ! wheel=$("$here/build.sh" --built "$built" --out "$work"); then
    fail "the wheel is built"; echo "$passed passed, $failed failed"; exit 1
  fi
fi
system=/usr/bin/python3
if [ -n "$only" ]; then
  . "$here/frameworks/run.sh"
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]; exit
fi
# With debug checks it is larger than what is released, and small enough all the same.
is_small() { [ "$(stat -c %s "$wheel")" -lt 15728640 ]; }
check "the wheel has less than 15 MiB" is_small

# One version, so that a new one cannot fail this test.
auditwheel=auditwheel==6.8.2
fetch_auditwheel() { "$system" -m venv "$work/audit" && "$work/audit/bin/python" -m pip install --quiet "$auditwheel"; }
if [ -z "${AUDITWHEEL-}" ] && fetch_auditwheel > "$work/log" 2>&1; then AUDITWHEEL=$work/audit/bin/auditwheel; fi
if [ -n "${AUDITWHEEL-}" ]; then
  export AUDITWHEEL
  # So that the check is seen to fail: a platform whose C library is older than what the files ask for.
  older=$work/${wheel##*/} older=${older%-*}-manylinux_2_17_$(uname -m).whl
  ln -s "$wheel" "$older"
  refuses() { ! "$here/audit.sh" "$older" 2> "$work/log" && grep 'does not agree' "$work/log"; }
  check "auditwheel confirms the platform tag of the wheel" "$here/audit.sh" "$wheel"
  check "auditwheel does not confirm an older one" refuses
else
  not_run "the platform tag of the wheel, by auditwheel" "pip cannot fetch it: $(tail -n 1 "$work/log"); install it, and name it in AUDITWHEEL"
fi

# The examples as a program that is checked strictly sees the package. One version here, too.
types() { "$work/types/bin/python" -m mypy --strict --ignore-missing-imports "$here"/examples/*.py; }
fetch_mypy() { "$system" -m venv "$work/types" && "$work/types/bin/python" -m pip install --quiet mypy==2.4.1 numpy==2.4.6 "$wheel"; }
if fetch_mypy > "$work/log" 2>&1; then
  check "mypy --strict passes over the examples" types
else
  not_run "the types of the examples, by mypy" "pip cannot fetch it: $(tail -n 1 "$work/log")"
fi

# The stand-in for the CUDA driver.
if command -v "${CC:-cc}" > /dev/null; then
  stub=$work/stub
  mkdir "$stub"
  "${CC:-cc}" -shared -fPIC -O2 -o "$stub/libcuda.so.1" tests/cuda_stub/libcuda.c &&
    "${CC:-cc}" -shared -fPIC -O2 -o "$stub/looks.so" tests/cuda_stub/looks.c && export FDBROKER_TEST_CUDA_STUB=$stub
fi

# environment NAME INTERPRETER OPTION...: a virtual environment with the wheel in it.
environment() {
  local name=$1 interpreter=$2; shift 2
  "$interpreter" -m venv "$@" "$work/$name" > "$work/log" 2>&1 &&
    "$work/$name/bin/python" -m pip install --quiet --no-index --no-deps "$wheel" >> "$work/log" 2>&1
}
# run NAME: the tests in it.
run() {
  local status=0 p f
  (cd "$work" && timeout --kill-after=10 280 "$work/$1/bin/python" "$here/tests/run.py") > "$work/out" 2>&1 || status=$?
  read -r p f < <(awk '/^[0-9]+ passed, [0-9]+ failed$/ { p = $1; f = $3 } END { print p + 0, f + 0 }' "$work/out")
  if [ "$status" != 0 ] && [ "$f" = 0 ] || [ $((p + f)) = 0 ]; then f=$((f + 1)); fi
  echo "-- $1: $p passed, $f failed"
  [ "$f" = 0 ] || sed 's/^/      /' "$work/out" | tail -n 120
  [ "$f" != 0 ] || grep -E '^Python|^not run here' "$work/out" | sed 's/^/   /' | sort -u
  passed=$((passed + p)) failed=$((failed + f))
}

number=0
for interpreter in "$python" $others; do
  check "pip installs the wheel in a bare environment of $("$interpreter" --version)" environment "bare$number" "$interpreter"
  run "bare$number"
  number=$((number + 1))
done
works() { "$work/bare0/bin/fdbroker" run -- "$work/bare0/bin/python" -m fdbroker demo --ranks 2 --buffers 20 --json > "$work/out"; }
check "the command and the demo of the wheel work" works
daemon() { "$work/bare0/bin/fdbrokerd" --version | grep '^fdbrokerd '; }
check "fdbrokerd is a command of the wheel" daemon
doctor() { "$work/bare0/bin/fdbroker" run -- "$work/bare0/bin/python" -m fdbroker doctor --json | grep -q '"checks"'; }
check "python -m fdbroker doctor works" doctor
layers() { "$work/bare0/bin/fdbroker" run --cuda -- true && "$work/bare0/bin/fdbroker" run --level-zero -- true; }
check "run --cuda and run --level-zero find the layers of the wheel" layers

if "$system" -c 'import numpy, venv, ensurepip' 2> /dev/null; then
  check "pip installs the wheel beside numpy" environment numpy "$system" --system-site-packages
  FDBROKER_TEST_DOCUMENTS=$root run numpy
else
  not_run "the Python package beside numpy, its examples and docs/python.md" "numpy is not installed; run: sudo tests/install.sh"
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
