#!/bin/bash
# Runs programs that know nothing of fdbroker with and without its Level Zero layer, under one loader, and ends with
# `N passed, N failed`. Must never pass a part that did not run. run.sh starts it and sets ZE_TEST_LOADER and
# ZE_ENABLE_ALT_DRIVERS.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")

case $# in
  3) ;;
  *) echo "usage: tests/level_zero/layer.sh BUILT UNMODIFIED CLIENT   (BUILT: cargo's directory of this build)" >&2
     exit 2 ;;
esac
built=$1 unmodified=$2 client=$3
layer=$built/libfdbroker_ze.so
export ZE_TEST_FDBROKER=$built/fdbroker
fdbroker=$ZE_TEST_FDBROKER

passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ok() { passed=$((passed + 1)); echo "ok      $*"; }
bad() { failed=$((failed + 1)); echo "FAILED  $*"; }

# cases NAME COMMAND...: a program whose last line is `N passed, N failed`.
cases() {
  local name=$1 status=0 p f; shift
  "$@" > "$work/log" 2>&1 || status=$?
  sed -n "s/^\(ok  *\|FAILED *\)/&$name: /p" "$work/log"
  read -r p f < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$work/log" | tail -n 1)
  if [ "$status" != 0 ] && [ "${f:-0}" = 0 ] || [ "${p:-0}" = 0 ]; then f=$((${f:-0} + 1)); fi
  [ "${f:-0}" = 0 ] || grep -v '^ok ' "$work/log"
  passed=$((passed + ${p:-0})) failed=$((failed + f))
}

# ends NAME STATUS TEXT COMMAND...: a program that must end with this status and print this text.
ends() {
  local name=$1 status=$2 text=$3 got=0 out; shift 3
  out=$("$@" 2>&1) || got=$?
  if [ "$got" = "$status" ] && [[ $out == *"$text"* ]]; then
    ok "$name"
  else
    bad "$name: status $got, expected $status and '$text':"$'\n'"$out"
  fi
}

by_value=handle_when_passed_by_value_shares_legacy
by_hand=(env ZE_ENABLE_VALIDATION_LAYER=1 "LD_LIBRARY_PATH=$built/fdbroker-level-zero")
no_broker=FDBROKER_SOCKET=$work/no/broker.sock

# Without the layer an fd number that is passed by value means nothing. If this passed, the rest would prove nothing.
ends "by value, without the layer: refused" 1 ZE_RESULT_ERROR_INVALID_ARGUMENT \
  "$fdbroker" run -- env ZE_TEST_DRIVER_HANDLES=legacy "$unmodified" $by_value
for list in broker virtual; do
  cases "layer" "$fdbroker" run --level-zero --max-fds 256 -- "$unmodified" "$list"
done
cases "layer" "$fdbroker" run --level-zero -- "$unmodified" lost
if words=$(unshare --user --map-root-user --pid --fork true 2>&1); then
  cases "layer" "$fdbroker" run --level-zero -- "$unmodified" namespaces
else
  not_run "level zero: other PID namespaces" "$words"
fi
ends "by value, layer, run --join" 0 "" \
  "$fdbroker" run --join --job "test-$$" --level-zero -- env ZE_TEST_DRIVER_HANDLES=legacy "$unmodified" $by_value
ends "by value, layer, by hand" 0 "" \
  "$fdbroker" run -- "${by_hand[@]}" ZE_TEST_DRIVER_HANDLES=legacy "$unmodified" $by_value
# Only what is preloaded can make fd numbers good in any process. By hand the driver's fds stand in the handles.
for list in broker drivers; do
  cases "by hand" "$fdbroker" run --max-fds 256 -- "${by_hand[@]}" "$unmodified" "$list"
done
for list in broker virtual; do
  cases "preloaded" "$fdbroker" run --max-fds 256 -- env "LD_PRELOAD=$layer" "$unmodified" "$list"
done
ends "by value, layer and preloaded" 0 "" \
  "$fdbroker" run --level-zero -- env "LD_PRELOAD=$layer" ZE_TEST_DRIVER_HANDLES=legacy "$unmodified" $by_value

# A C program that is linked to the loader: the dynamic linker finds functions in another way than dlopen(3).
if gcc -Wall -o "$work/linked" "$here/linked.c" -l:libze_loader.so.1 &&
  { [ "$ZE_TEST_LOADER" = 1.8.12 ] || { "$here/debian13.sh" "$work/linked" "$work/other" && mv "$work/other" "$work/linked"; }; }
then
  ends "linked, without the layer: refused" 1 "zeMemOpenIpcHandle" "$fdbroker" run -- "$work/linked"
  ends "linked, layer" 0 "handed out once" "$fdbroker" run --level-zero -- "$work/linked"
  if unshare --user --pid --fork true 2> /dev/null; then
    ends "linked, after unshare(CLONE_NEWPID): said why there is no thread" 1 "the broker cannot be used, IPC handles are the driver's own, not \
good by value: cannot start the library thread: Invalid argument (os error 22) (after unshare(CLONE_NEWPID) no thread can start" \
      "$fdbroker" run --level-zero -- "$work/linked" apart
  fi
  ends "linked, preloaded" 0 "handed out once" "$fdbroker" run -- env "LD_PRELOAD=$layer" "$work/linked"
  ends "linked, layer and preloaded" 0 "handed out once" "$fdbroker" run --level-zero -- env "LD_PRELOAD=$layer" "$work/linked"
else
  bad "linked: it does not build"
fi

# A profiler's program: the loader's tracing layer stands in the chain, with one driver and with two, called straight and through
# the loader. It sees each call once.
compiled=(gcc -Wall -Wextra -Werror -o "$work/traced" "$here/traced.c" -l:libze_loader.so.1 -ldl)
if "${compiled[@]}" &&
  { [ "$ZE_TEST_LOADER" = 1.8.12 ] || { "$here/debian13.sh" "$work/traced" "$work/other" && mv "$work/other" "$work/traced"; }; }
then
  cp "$built/libfdbroker_ze_test_driver.so" "$work/second.so"
  once="traced: 1 of zeMemGetIpcHandle, 1 of zeMemFree"
  for drivers in "$ZE_ENABLE_ALT_DRIVERS" "$ZE_ENABLE_ALT_DRIVERS,$work/second.so"; do
    for intercept in 0 1; do
      name="drivers: $(tr -cd , <<< "$drivers" | wc -c) more, intercepted: $intercept"
      # LATE: tracing is enabled at run time, which loader 1.8.12 cannot do.
      for late in '' late; do
        [ "$ZE_TEST_LOADER$late" != 1.8.12late ] || continue
        tracing=(env "ZE_ENABLE_ALT_DRIVERS=$drivers" "ZE_TEST_DRIVER_HELPER=$built/ze-test-memory" ZE_TEST_DRIVER_HANDLES=legacy
          "ZE_ENABLE_LOADER_INTERCEPT=$intercept")
        [ -n "$late" ] || tracing+=(ZE_ENABLE_TRACING_LAYER=1)
        ends "traced $late, without the layer, $name" 0 "$once" "${tracing[@]}" ZE_TEST_DRIVER_HANDLES=opaque "$work/traced" $late
        ends "traced $late, layer, $name" 0 "$once" "${tracing[@]}" "$fdbroker" run --level-zero -- "$work/traced" $late
        ends "traced $late, by hand, $name" 0 "$once" "$fdbroker" run -- "${tracing[@]}" "${by_hand[@]}" "$work/traced" $late
        [ -n "$late" ] ||
          ends "traced, preloaded, $name" 0 "$once" "$fdbroker" run -- "${tracing[@]}" "LD_PRELOAD=$layer" "$work/traced"
      done
    done
  done
else
  bad "traced: it does not build"
fi
# Old loaders give wrapped handles to programs with two drivers, which a driver's own functions do not take.
if [ "$ZE_TEST_LOADER" != 1.8.12 ]; then
  cases "two drivers" env "ZE_ENABLE_ALT_DRIVERS=$ZE_ENABLE_ALT_DRIVERS,$work/second.so" "ZE_TEST_DRIVER_HELPER=$built/ze-test-memory" \
    "$fdbroker" run --level-zero -- "$unmodified" two-drivers
fi
cases "traced, layer" env ZE_ENABLE_TRACING_LAYER=1 "$fdbroker" run --level-zero --max-fds 256 -- "$unmodified" broker
ends "the loader's validation layer is asked for: said to be off" 0 "ZE_ENABLE_PARAMETER_VALIDATION=1 has no effect" \
  env ZE_ENABLE_PARAMETER_VALIDATION=1 "$fdbroker" run --level-zero -- true

# The loader that a program closes stays loaded: a recall calls the driver.
if gcc -Wall -Werror -o "$work/closed" "$here/closed.c" -ldl &&
  { [ "$ZE_TEST_LOADER" = 1.8.12 ] || { "$here/debian13.sh" "$work/closed" "$work/other" && mv "$work/other" "$work/closed"; }; }
then
  ends "loader closed, layer" 0 "asked for again once" "$fdbroker" run --level-zero -- "$work/closed"
  ends "loader closed, by hand" 0 "asked for again once" "$fdbroker" run -- "${by_hand[@]}" "$work/closed"
else
  bad "loader closed: it does not build"
fi

# Without a broker all cases of ze-test-client, which knows the driver's rules, must pass unchanged.
cases "no broker" "${by_hand[@]}" "$no_broker" "$unmodified" no-broker
cases "no broker" "${by_hand[@]}" "$no_broker" "$client"
cases "no broker, preloaded" env "LD_PRELOAD=$layer" "$no_broker" "$client"
lines=$("${by_hand[@]}" "$no_broker" ZE_TEST_DRIVER_HANDLES=legacy \
  "$unmodified" broker_when_absent_leaves_the_drivers_handles_legacy 2>&1 | grep -c '^fdbroker-level-zero.*NOT_CONNECTED')
if [ "$lines" = 1 ]; then ok "no broker: one line"; else bad "no broker: $lines lines on stderr, expected 1"; fi
# Another user's server is none.
if [ "$(id -u)" = 0 ]; then
  python3 "$here/../common/impostor.py" "$work/foreign.sock" "$work/heard" &
  impostor=$!
  until grep -q " 00010000 0005 01 [0-9]* $work/foreign.sock\$" /proc/net/unix; do sleep 0.05; done
  lines=$("${by_hand[@]}" "FDBROKER_SOCKET=$work/foreign.sock" ZE_TEST_DRIVER_HANDLES=legacy \
    "$unmodified" broker_when_absent_leaves_the_drivers_handles_legacy 2>&1 | grep -c '^fdbroker-level-zero.*served by uid 61003: NOT_PERMITTED')
  kill "$impostor"
  heard=$(sort -u "$work/heard")
  if [ "$lines $heard" = '1 0' ]; then ok "another user's server: one line, and nothing is sent to it"
  else bad "another user's server: $lines lines on stderr, expected 1; it heard '$heard', expected 0"; fi
else
  not_run "level zero: another user's server" "needs root, for another user"
fi
lines=$("$fdbroker" run --level-zero -- env ZE_TEST_DRIVER_HANDLES=legacy \
  "$unmodified" handle_when_of_another_node_is_refused 2>&1 | grep -c '^fdbroker-level-zero.*WRONG_NODE')
if [ "$lines" = 1 ]; then ok "another node: one line"; else bad "another node: $lines lines on stderr, expected 1"; fi

# `run --level-zero` must never run a program without the layer.
cp "$fdbroker" "$work/fdbroker"
ends "run --level-zero without a layer: an error with its remedy" 1 "cargo build -p fdbroker-ze-layer" \
  "$work/fdbroker" run --level-zero -- true

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
