#!/bin/sh
# The cases of Intel's driver, a row each: with the driver alone, and under the layer. Ends with `N passed, N failed`. run.sh starts it
# here, or in the virtual machine, whose shell is busybox's. Must never pass a case in which the layer showed other memory or fell
# behind the driver alone.
#
# usage: table.sh ROOM LIBRARIES whole|sample [apart]
# ROOM: fdbroker with its layer, ze-test-memory, node.so and the program of the cases. LIBRARIES: the folder of the driver's.
# apart: another PID namespace can be made.
room=$1 libraries=$2 size=$3 apart=${4-}
export ZE_ENABLE_ALT_DRIVERS="$libraries/libze_intel_gpu.so.1" NODE_HELPER="$room/ze-test-memory" NEOReadDebugKeys=1
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
passed=0 failed=0 limit_s=120
# Before the layer, whose calls are raw.
# shellcheck disable=SC2016
after_node='LD_PRELOAD=$0${LD_PRELOAD:+:$LD_PRELOAD} exec "$@"'

# answer COMMAND...: a case's one line, or why there is none.
answer() {
  status=0
  out=$(timeout -k 5 "$limit_s" "$@" 2> "$errors") || status=$?
  if [ "$status" = 0 ]; then echo "$out"; else echo "status $status: $out $(tail -n 1 "$errors")"; fi
}

# try NAME EXPECTED KEYS OPTIONS CASE: EXPECTED is what is found under the layer; `alone`: what the driver alone finds. KEYS and
# OPTIONS are words each.
# shellcheck disable=SC2086
try() {
  expected=$2 verdict=ok
  alone=$(answer env $3 sh -c "$after_node" "$room/node.so" "$room/cases" "$5")
  layer=$(answer "$room/fdbroker" run --level-zero $4 -- env $3 sh -c "$after_node" "$room/node.so" "$room/cases" "$5")
  [ "$expected" != alone ] || expected=$alone
  if [ "$layer" = "$expected" ]; then passed=$((passed + 1)); else verdict="FAILED, expected '$expected'" failed=$((failed + 1)); fi
  echo "| $1 | $alone | $layer | $verdict |"
}

all="of 40: 40 right, 0 other memory, 0 refused"
# form NAME KEYS CASE...: one form of the driver's handles, in these ways.
form() {
  name=$1 keys=$2
  shift 2
  for case in "$@"; do try "$name: $case" "$all" "$keys" '' "$case"; done
  try "$name: freed and used again" \
    "freed memory: 0 still open, 0 other memory, 20 refused; new memory: 40 right, 0 other memory, 0 refused" "$keys" '' reuse
  try "$name: owner killed" "before right, open memory after right, opened again refused" "$keys" '' owner-killed
  try "$name: 600 buffers under 256 fds, 64 at the broker" "of 600: 600 right, 0 other memory, 0 refused" "$keys" '--max-fds 64' many
}
# What says the same of memfds and of dma-bufs.
more() {
  name=$1 keys=$2
  try "$name: other ways" "zexMemGetIpcHandles right, host memory right" "$keys" '' other-ways
  try "$name: event pool" "of 3: 3 right, 0 other memory, 0 refused" "$keys" '' event-pool
  if [ -n "$apart" ]; then
    for case in by-value fetched; do try "$name: another PID namespace, $case" "$all" "$keys" '' "$case-apart"; done
    # The exporter's pid in the handle names nobody there, or another: it is not used.
    try "$name: another PID namespace, event pool" "of 3: 3 right, 0 other memory, 0 refused" "$keys" '' event-pool-apart
  fi
  try "$name, pooled: by-value" "$all" "$keys EnableDeviceUsmAllocationPool=1" '' by-value
  # An fd carries no offset.
  try "$name, pooled: fd-alone" alone "$keys EnableDeviceUsmAllocationPool=1" '' fd-alone
}

legacy=EnablePidFdOrSocketsForIpc=0 pidfd=EnablePidFdOrSocketsForIpc=1
sockets="$pidfd ForceIpcSocketFallback=1"
echo "| case | driver alone | under the layer | |"
echo "|---|---|---|---|"
# How the driver fetches changes nothing in the fds that programs pass.
form legacy "$legacy" by-value fetched fd-alone sent sent-alone
form "opaque, pidfd" "$pidfd" by-value fetched fd-alone sent sent-alone
form "opaque, sockets" "$sockets" by-value
if [ "$size" = whole ]; then
  more legacy "$legacy"
  more "opaque, pidfd" "$pidfd"
  more "opaque, sockets" "$sockets"
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
