#!/bin/bash
# Named objects: what tests/e2e says of them, the same under the stand-in for CUDA, what needs cgroups, and the command. Ends with `N passed, N failed`. Must never pass a case
# that did not run: what is missing is named.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."

case ${1-} in
  -h | --help)
    cat << 'HELP'
usage: tests/objects/run.sh [WORD]

Builds the daemon, the command and the end-to-end tests, and runs all that is about objects; with WORD only those end-to-end
tests whose name contains it.
As root all of it runs; without root, cgroups or a C compiler the rest is named as not run.
HELP
    exit 0 ;;
  -*) echo "tests/objects/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac
word=${1-}

target=$(tests/programs.py) && program=$(tests/programs.py e2e) || { echo "0 passed, 1 failed"; exit 1; }
work=$(mktemp -d)
memory=$(mktemp -d -p /dev/shm fdbroker-objects-XXXXXX)
children=() groups=()
cleanup() {
  local pid group
  for pid in "${children[@]}"; do kill -9 "$pid" 2> /dev/null; done
  wait 2> /dev/null
  for group in "${groups[@]}"; do rmdir "$group" 2> /dev/null; done
  rm -rf "$work" "$memory"
}
trap cleanup EXIT
. "$here/../common/checks.sh"
unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET XDG_RUNTIME_DIR LD_PRELOAD
fdbroker=$target/fdbroker

# program COMMAND...: runs the test program, and counts its cases.
program() {
  local status=0 p f
  (cd broker && exec timeout --kill-after=10 1500 "$@") > "$work/program" 2>&1 || status=$?
  grep -E '^test .* \.\.\. |^not run: ' "$work/program"
  p=$(grep -cE '^test .* \.\.\. .*ok$' "$work/program") f=$(grep -cE '^test .* \.\.\. .*FAILED$' "$work/program")
  # A program that died, or that ran nothing, has failed.
  if [ $((p + f)) = 0 ] || { [ "$status" != 0 ] && [ "$f" = 0 ]; }; then f=$((f + 1)); echo "FAIL  the test program: exit status $status"; fi
  [ "$f" = 0 ] || sed -n '/^failures:$/,$ s/^/      /p' "$work/program" | head -n 300
  passed=$((passed + p)) failed=$((failed + f))
}
threads=$(nproc)
program "$program" --test-threads="$threads" --skip objects::cuda:: "${word:-objects::}"

# ---- memory of a GPU, which is the stand-in's
if [ -n "$word" ]; then
  echo "$passed passed, $failed failed"; [ "$failed" = 0 ]; exit
fi
cc=${CC:-cc}
if command -v "$cc" > /dev/null && "$cc" -shared -fPIC -O2 -o "$work/libcuda.so.1" tests/cuda_stub/libcuda.c 2> "$work/out"; then
  # The stand-in comes before libc, in the daemon, too, so that it takes the stand-in's fds for the driver's.
  program env LD_LIBRARY_PATH="$work" LD_PRELOAD="$work/libcuda.so.1" FDBROKER_CUDA_STUB_DIR="$memory" \
    "$program" --test-threads=1 objects::cuda::
else
  not_run "objects: memory of a GPU, against the stand-in for CUDA" "no C compiler; run: sudo tests/install.sh"
fi

# ---- pages are charged to the cgroup of the maker, never to the daemon's
root_of_memory() { # the folder in which memory cgroups can be made
  local v2=/sys/fs/cgroup
  if [ -e "$v2/cgroup.subtree_control" ]; then
    grep -qw memory "$v2/cgroup.subtree_control" && echo "$v2"
  else
    [ -d "$v2/memory" ] && echo "$v2/memory"
  fi
}
shmem_of() { awk '$1 == "shmem" { print $2 }' "$1/memory.stat"; }
daemon_pays_nothing() {
  local base=$1 daemons=$1/fdbroker-test-$$-daemon makers=$1/fdbroker-test-$$-maker socket=$work/d/fdbroker/broker.sock until own bytes
  mkdir "$daemons" "$makers" || return 1
  groups+=("$daemons" "$makers")
  mkfifo "$work/hold"; exec {hold}<> "$work/hold"
  mkdir "$work/d"
  # shellcheck disable=SC2016 # the inner shell's
  sh -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' "$daemons" "$target/fdbrokerd" --private "$work/d" --until-eof 0 --ready-fd 1 \
    < "$work/hold" > "$work/ready" 2> "$work/log" {hold}>&- &
  children+=("$!")
  until=$((SECONDS + 30))
  until grep -qs READY "$work/ready"; do [ "$SECONDS" -lt "$until" ] || { cat "$work/log"; return 1; }; sleep 0.05; done
  # Its own files, where /tmp is in memory.
  own=$(shmem_of "$daemons")
  head -c $((64 << 20)) /dev/urandom > "$work/64"
  # shellcheck disable=SC2016 # the inner shell's
  FDBROKER_SOCKET=$socket sh -c 'echo $$ > "$0/cgroup.procs" && exec "$@"' "$makers" "$fdbroker" put big "$work/64" || return 1
  FDBROKER_SOCKET=$socket "$fdbroker" get big | cmp - "$work/64" || return 1
  # The maker is gone, and so is its own memory: what is left are the object's pages.
  bytes=$(shmem_of "$makers"); echo "the makers' cgroup: $bytes"; [ "$bytes" -ge $((64 << 20)) ] || return 1
  bytes=$(shmem_of "$daemons"); echo "the daemon's cgroup: $bytes, $own at first"; [ "$bytes" -lt $((own + (16 << 20))) ] || return 1
  # The read of the whole object by somebody else has changed nothing of that. With its name the memory goes.
  FDBROKER_SOCKET=$socket "$fdbroker" rm big || return 1
  until=$((SECONDS + 30))
  until bytes=$(shmem_of "$makers"); [ "$bytes" -lt $((1 << 20)) ]; do
    [ "$SECONDS" -lt "$until" ] || { echo "the makers' cgroup still has $bytes"; return 1; }
    sleep 0.05
  done
  exec {hold}>&-
}
if [ "$(id -u)" != 0 ]; then
  not_run "objects: the daemon's cgroup is not charged for anybody's pages" "needs root"
elif base=$(root_of_memory) && [ -n "$base" ] && mkdir "$base/fdbroker-test-$$" 2> /dev/null; then
  rmdir "$base/fdbroker-test-$$"
  check "the daemon's cgroup is not charged for anybody's pages" daemon_pays_nothing "$base"
else
  not_run "objects: the daemon's cgroup is not charged for anybody's pages" "no cgroup with the memory controller can be made"
fi

# ---- the command
head -c 1000000 /dev/urandom > "$work/file"
story() {
  # shellcheck disable=SC2016 # the inner shell's
  FDBROKER=$fdbroker FILE=$work/file "$fdbroker" run -- sh -c \
    '"$FDBROKER" put model/a "$FILE" && "$FDBROKER" objects model/ && "$FDBROKER" get model/a | cmp - "$FILE"'
}
check "the command puts, lists and gets in one line of a shell" story

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
