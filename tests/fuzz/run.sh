#!/bin/bash
# Fuzzing on the stable toolchain: builds the targets, runs each on its regressions, on generated seeds and on new
# inputs, and prints what that covered. Must never change a file that git knows.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"

usage() {
  cat << 'HELP'
usage: tests/fuzz/run.sh [--seconds N] [--target NAME]... [--jobs N] [--list]

Builds the fuzz targets with the compiler's coverage flags (stable toolchain, and a C++ compiler for libFuzzer). Each
target then runs every input of
  regressions/NAME  inputs that once showed a fault; kept in git
  seeds             written anew each time by src/seeds.rs
  corpus/NAME       what earlier runs have found; git ignores it, and you may delete it
and goes on with new inputs that libFuzzer makes of these. New inputs that reach more code are added to corpus/NAME.
Prints a table: inputs at the start, executions in all and per second, edges and features (an edge and how often it is
taken) reached. Ends with the line `N passed, N failed`; each target counts as one test. The stable toolchain has no
address sanitizer: the targets find panics, broken invariants, leaked fds and hangs.

  --seconds N    how long each target runs (default 10; 0: only the inputs that there are)
  --target NAME  this target only; may be repeated
  --jobs N       targets that run at a time (default: one per core)
  --list         prints the names of the targets, then the path of the program

An input that fails is kept as findings/NAME-*. Mend the fault, and move the input to regressions/NAME/WHAT.
To run one input by hand: FDBROKER_FUZZ_TARGET=NAME PROGRAM FILE, where PROGRAM is the last line of --list.
HELP
}

fail() { echo "tests/fuzz/run.sh: $* (--help explains)" >&2; exit 2; }

all=(cgroup config core daemon fdinfo handle library page saved wire)
seconds=10 targets=() jobs=$(nproc) list=''
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2?"--seconds needs a number"}; shift 2 ;;
    --target) targets+=("${2?"--target needs a name"}"); shift 2 ;;
    --jobs) jobs=${2?"--jobs needs a number"}; shift 2 ;;
    --list) list=1; shift ;;
    -h | --help) usage; exit 0 ;;
    *) fail "unknown argument '$1'" ;;
  esac
done
[[ $seconds =~ ^[0-9]+$ ]] || fail "--seconds '$seconds' is not a number"
[[ $jobs =~ ^[1-9][0-9]*$ ]] || fail "--jobs '$jobs' is not a number above 0"
[ ${#targets[@]} -gt 0 ] || targets=("${all[@]}")
for target in "${targets[@]}"; do
  [[ " ${all[*]} " == *" $target "* ]] || fail "no target '$target'; one of: ${all[*]}"
done

# The workspace's own directory: the crates that its other builds have left there are not built again.
dir=$(readlink -m "${CARGO_TARGET_DIR:-../../target}")
program=$dir/debug/fuzz
if [ -n "$list" ]; then printf '%s\n' "${all[@]}" "$program"; exit 0; fi

if ! command -v "${CXX:-c++}" > /dev/null; then
  echo "not run: libFuzzer needs a C++ compiler; install g++, or name one with CXX"
  exit 77
fi

RUSTC_WRAPPER=$PWD/rustc.sh cargo build --quiet --target-dir "$dir"

# The targets make their sockets and pages here.
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
FDBROKER_FUZZ_SEEDS=$TMPDIR/seeds "$program" 2> "$TMPDIR/log" || { cat "$TMPDIR/log" >&2; exit 1; }

# figure LOG NAME: a figure of libFuzzer's last report.
figure() { sed -n "s/^stat::$2: *//p" "$1" | tail -n 1; }
# covered LOG: edges and features, from the last line that has them.
covered() { sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\) .*/\1 \2/p' "$1" | tail -n 1; }

row='%-9s %8s %11s %10s %7s %9s  %s\n'
# fuzz NAME: runs one target, prints its row, and leaves an empty file passed.NAME when nothing failed.
fuzz() {
  local target=$1 log=$TMPDIR/$1.log inputs=() result=FAILED edges='' features=''
  local new=$TMPDIR/$1.new
  mkdir -p findings "corpus/$target" "$new"
  for folder in "corpus/$target" "regressions/$target" "$TMPDIR/seeds/$target"; do
    [ ! -d "$folder" ] || inputs+=("$folder")
  done
  # To libFuzzer a time of 0 is no limit; -runs=0 ends after the inputs that there are.
  local limit=(-max_total_time="$seconds"); [ "$seconds" -gt 0 ] || limit=(-runs=0)
  local count; count=$(find "${inputs[@]}" -type f | wc -l)
  export FDBROKER_FUZZ_TARGET=$target
  # libFuzzer adds what it finds to the first folder.
  if "$program" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="findings/$target-" \
    "${limit[@]}" "$new" "${inputs[@]}" > "$log" 2>&1; then
    result=passed; : > "$TMPDIR/passed.$target"
    # Of the new inputs, those that reach more edges than the corpus are kept; in CI the clone goes, and they with it.
    [ -n "${CI-}" ] || "$program" -merge=1 -use_counters=0 "corpus/$target" "$new" > "$log.merge" 2>&1 \
      || echo "the new inputs of $target were not kept" >&2
  else
    grep -aE "^(thread|assertion|  (left|right)|==|SUMMARY|.*panicked)" "$log" | head -n 20 >&2 || true
    echo "FAILED: $target; see findings/" >&2
  fi
  read -r edges features < <(covered "$log") || true
  # shellcheck disable=SC2059
  printf "$row" "$target" "$count" "$(figure "$log" number_of_executed_units)" \
    "$(figure "$log" average_exec_per_sec)" "$edges" "$features" "$result"
}

# shellcheck disable=SC2059
printf "$row" target inputs executions execs/s edges features result
for target in "${targets[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
  fuzz "$target" &
done
wait
passed=$(find "$TMPDIR" -maxdepth 1 -name 'passed.*' | wc -l)
failed=$((${#targets[@]} - passed))
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
