#!/bin/bash
# Runs Intel's own Level Zero driver over an emulated render node, alone and under the layer, side by side. Ends with
# `N passed, N failed`. Must never pass a case in which the layer showed other memory or fell behind the driver alone.
. "$(dirname "$(readlink -f "$0")")/../../common/start.sh"
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../../.."

case ${1-} in
  '') ;;
  -h | --help)
    cat << 'HELP'
usage: tests/level_zero/intel/run.sh

Prints a table: each case with the driver alone, and under `fdbroker run --level-zero`. README.md says what it proves. The driver's packages
are those of FDBROKER_INTEL_DEBS=DIR (by default ../shared/intel_driver/debs beside this checkout, when it is there), checked by
their sums, else what Debian's unstable suite has today. They are unpacked into tests/level_zero/img (another place:
FDBROKER_ZE_IMG=DIR). Exit status 77: it cannot run here.
HELP
    exit 0 ;;
  *) echo "tests/level_zero/intel/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cannot() { echo "$*"; exit 77; }
[ "$(uname -m)" = x86_64 ] || cannot "Intel's driver is for x86-64"
for tool in gcc patchelf dpkg-deb; do command -v "$tool" > /dev/null || cannot "$tool is not installed; run: sudo tests/install.sh"; done

given=${FDBROKER_INTEL_DEBS-}
[ -n "$given" ] || [ ! -d ../shared/intel_driver/debs ] || given=../shared/intel_driver/debs
root=$(realpath -m "${FDBROKER_ZE_IMG:-$here/../img}")/intel
"$here/fetch.sh" "$root" ${given:+"$given"} > "$work/log" 2>&1 || cannot "no driver: $(tail -n 1 "$work/log")"
echo "-- $(grep -h -e libze-intel-gpu1 "$root/.packages"), $(grep -h -e libze1_ "$root/.packages")"

target=$(tests/programs.py) || { echo "the build failed"; exit 1; }
libraries=$root/usr/lib/x86_64-linux-gnu
for variable in ${!FDBROKER_@} ${!ZE_@} ${!NEO@} LD_LIBRARY_PATH LD_PRELOAD; do
  case $variable in FDBROKER_TEST_PROGRAMS | FDBROKER_NOT_RUN_LOG) ;; *) unset "$variable" ;; esac
done
export ZE_ENABLE_ALT_DRIVERS=$libraries/libze_intel_gpu.so.1 NODE_HELPER=$target/ze-test-memory NEOReadDebugKeys=1
compile=(gcc -O1 -Wall -Wextra -Werror)
# The program runs on the packages' C library, by its interpreter and its own library folder: the driver needs a newer one than
# this machine may have. Other programs that it starts do not.
"${compile[@]}" -shared -fPIC -fvisibility=hidden "$here/node.c" -o "$work/node.so" -ldl -lpthread &&
  "${compile[@]}" "$here/cases.c" -o "$work/own" "-L$libraries" -l:libze_loader.so.1 -ldl -Wl,--allow-shlib-undefined &&
  patchelf --set-interpreter "$libraries/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$libraries" --output "$work/cases" "$work/own" ||
  { echo "the programs do not compile"; exit 1; }
# Before the layer, whose calls are raw.
after_node='LD_PRELOAD=$0${LD_PRELOAD:+:$LD_PRELOAD} exec "$@"'

limit_s=120
# answer COMMAND...: a case's one line, or why there is none.
answer() {
  local status=0 out
  out=$(timeout -k 5 "$limit_s" "$@" 2> "$work/errors") || status=$?
  [ "$status" = 0 ] && echo "$out" || echo "status $status: $out $(tail -n 1 "$work/errors")"
}

# try NAME EXPECTED KEYS OPTIONS CASE: EXPECTED is what is found under the layer; `alone`: what the driver alone finds.
try() {
  local name=$1 expected=$2 keys=$3 options=$4 case=$5 alone layer verdict=ok
  alone=$(answer env $keys sh -c "$after_node" "$work/node.so" "$work/cases" "$case")
  layer=$(answer "$target/fdbroker" run --level-zero $options -- env $keys sh -c "$after_node" "$work/node.so" "$work/cases" "$case")
  [ "$expected" != alone ] || expected=$alone
  if [ "$layer" = "$expected" ]; then passed=$((passed + 1)); else verdict="FAILED, expected '$expected'"; failed=$((failed + 1)); fi
  echo "| $name | $alone | $layer | $verdict |"
}

legacy=EnablePidFdOrSocketsForIpc=0 pidfd=EnablePidFdOrSocketsForIpc=1
sockets="$pidfd ForceIpcSocketFallback=1" pool=EnableDeviceUsmAllocationPool=1
all="of 40: 40 right, 0 other memory, 0 refused"
echo "| case | driver alone | under the layer | |"
echo "|---|---|---|---|"
for form in "legacy:$legacy" "opaque, pidfd:$pidfd" "opaque, sockets:$sockets"; do
  name=${form%%:*} keys=${form#*:}
  try "$name: by-value" "$all" "$keys" '' by-value
  # How the driver fetches changes nothing in the fds that programs pass.
  if [ "$keys" != "$sockets" ]; then
    for case in fetched fd-alone sent sent-alone; do try "$name: $case" "$all" "$keys" '' "$case"; done
  fi
  try "$name: other ways" "zexMemGetIpcHandles right, host memory right" "$keys" '' other-ways
  try "$name: event pool" "of 3: 3 right, 0 other memory, 0 refused" "$keys" '' event-pool
  try "$name: freed and used again" \
    "freed memory: 0 still open, 0 other memory, 20 refused; new memory: 40 right, 0 other memory, 0 refused" "$keys" '' reuse
  try "$name: owner killed" "before right, open memory after right, opened again refused" "$keys" '' owner-killed
  try "$name: 600 buffers under 256 fds, 64 at the broker" "of 600: 600 right, 0 other memory, 0 refused" "$keys" '--max-fds 64' many
  if words=$(unshare --user --map-root-user --pid --fork true 2>&1); then
    for case in by-value-apart fetched-apart; do try "$name: another PID namespace, ${case%-apart}" "$all" "$keys" '' "$case"; done
    # The exporter's pid in the handle names nobody there, or another: it is not used.
    try "$name: another PID namespace, event pool" "of 3: 3 right, 0 other memory, 0 refused" "$keys" '' event-pool-apart
  else
    not_run "level zero, Intel: other PID namespaces" "$words"
  fi
  try "$name, pooled: by-value" "$all" "$keys $pool" '' by-value
  # An fd carries no offset.
  try "$name, pooled: fd-alone" alone "$keys $pool" '' fd-alone
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
