#!/bin/bash
# Fuzzing on the stable toolchain: replays every input of every corpus, then fuzzes each target for a while, and prints
# what that covered. Must never change a corpus unless told to (--merge, --seeds); what fails is left to be looked at.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"

usage() {
  cat << 'HELP'
usage: tests/fuzz/run.sh [--seconds N] [--target NAME]... [--merge] [--seeds] [--list]

Builds the fuzz targets with the compiler's coverage flags (stable toolchain, a C++ compiler for libFuzzer, a target
directory of its own), replays corpus/NAME, the regressions among it, and then fuzzes each target for N seconds on one
core. Prints a table: inputs replayed, executions, executions per second, edges and features (edges with how often) covered; ends
with the line `N passed, N failed`: replay and fuzzing of a target count as one test each. There is no address
sanitizer on the stable toolchain: what is found are panics, broken invariants, leaked fds and hangs.

  --seconds N    how long each target is fuzzed (default 10; 0: only the replay)
  --target NAME  this one only; may be repeated
  --merge        then take new inputs that reach more edges into corpus/NAME, minimised
  --seeds        write the seeds (src/seeds.rs) into the corpora first
  --list         the names of the targets

An input that fails is kept as findings/NAME-*: mend what it shows, and move it to corpus/NAME/regression-WHAT.
To run one by hand: FDBROKER_FUZZ_TARGET=NAME PROGRAM FILE, where PROGRAM is the last line of --list.
HELP
}

all=(cgroup config core daemon fdinfo handle library page saved wire)
seconds=10 targets=() merge='' seeds='' list=''
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2?"--seconds needs a number"}; shift 2 ;;
    --target) targets+=("${2?"--target needs a name"}"); shift 2 ;;
    --merge) merge=1; shift ;;
    --seeds) seeds=1; shift ;;
    --list) list=1; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "tests/fuzz/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
  esac
done
[[ $seconds =~ ^[0-9]+$ ]] || { echo "tests/fuzz/run.sh: --seconds '$seconds' is no number" >&2; exit 2; }
[ ${#targets[@]} -gt 0 ] || targets=("${all[@]}")
for target in "${targets[@]}"; do
  case " ${all[*]} " in
    *" $target "*) ;;
    *) echo "tests/fuzz/run.sh: no target '$target'; one of: ${all[*]}" >&2; exit 2 ;;
  esac
done

host=$(rustc -vV | sed -n 's/^host: //p')
# Beside the workspace's own, so that neither build throws the other's away.
dir=${CARGO_TARGET_DIR:-../../target}/fuzz
program=$(readlink -m "$dir/$host/release/fuzz")
if [ -n "$list" ]; then printf '%s\n' "${all[@]}" "$program"; exit 0; fi

if ! command -v "${CXX:-c++}" > /dev/null; then
  echo "not run: libFuzzer needs a C++ compiler; install g++, or name one with CXX"
  exit 77
fi

# For the target alone (--target): build scripts and macros are not instrumented. These flags are those of
# clang's -fsanitize=fuzzer-no-link; rustc takes them without a nightly compiler.
coverage='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares'
RUSTFLAGS="${coverage//$'\n'/ }" \
  cargo build --quiet --release --target "$host" --target-dir "$dir"
[ -z "$seeds" ] || FDBROKER_FUZZ_SEEDS=corpus "$program"

# Where targets make sockets and pages.
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
passed=0 failed=0

# stat LOG NAME: a figure of libFuzzer's last report.
stat() { sed -n "s/^stat::$2: *//p" "$1" | tail -n 1; }
# Edges, features: of the last line that has them.
covered() { sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\) .*/\1 \2/p' "$1" | tail -n 1; }
judge() {
  if [ "$1" = 0 ]; then passed=$((passed + 1)); return; fi
  failed=$((failed + 1))
  grep -aE "^(thread|assertion|  (left|right)|==|SUMMARY|.*panicked)" "$3" | head -n 20 >&2
  echo "FAILED: $2; see findings/" >&2
}

printf '%-9s %8s %11s %10s %7s %9s  %s\n' target replayed executions execs/s edges features result
for target in "${targets[@]}"; do
  export FDBROKER_FUZZ_TARGET=$target
  log=$TMPDIR/log result=passed executions=0 rate=0
  mkdir -p findings
  common=(-timeout=20 -rss_limit_mb=2048 -artifact_prefix="findings/$target-" -print_final_stats=1)
  inputs=("corpus/$target"/*)
  replayed=${#inputs[@]} status=0
  # As files: every one runs, also those that cover nothing new.
  "$program" "${common[@]}" "${inputs[@]}" > "$log" 2>&1 || status=$?
  judge $status "replay of $target" "$log"
  [ $status = 0 ] || result=FAILED
  grown=$TMPDIR/$target; mkdir -p "$grown"; status=0
  # 0 is no limit to libFuzzer; so is -runs=0 to stop when the corpus is read.
  limit=(-max_total_time="$seconds"); [ "$seconds" -gt 0 ] || limit=(-runs=0)
  "$program" "${common[@]}" "${limit[@]}" "$grown" "corpus/$target" > "$log" 2>&1 || status=$?
  judge $status "fuzzing of $target" "$log"
  [ $status = 0 ] || result=FAILED
  executions=$(stat "$log" number_of_executed_units); rate=$(stat "$log" average_exec_per_sec)
  read -r edges features < <(covered "$log") || true
  printf '%-9s %8s %11s %10s %7s %9s  %s\n' \
    "$target" "$replayed" "${executions:--}" "${rate:--}" "${edges:--}" "${features:--}" "$result"
  if [ -n "$merge" ] && [ "$result" = passed ]; then
    mkdir "$TMPDIR/merged"
    # By edges alone: one input for each that is reached keeps the corpora small.
    "$program" "${common[@]}" -merge=1 -use_counters=0 "$TMPDIR/merged" "corpus/$target" "$grown" > "$log" 2>&1
    find "corpus/$target" -type f ! -name 'regression-*' -delete
    # Named by what they contain.
    find "$TMPDIR/merged" -type f -size -4k -exec mv -t "corpus/$target" {} +
    rm -rf "$TMPDIR/merged"
  fi
done
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
