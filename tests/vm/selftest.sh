#!/bin/bash
# Tests tests/vm/run.sh itself: exit status, the two outputs, environment, users, limits, and several at once.
# With --quick, as tests/run.sh has it, one boot, and what is refused before one. It never tests the workspace's own programs, and
# leaves nothing behind but the guest image that run.sh keeps.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -euo pipefail

case ${1-} in
  "" | --quick) ;;
  -h | --help) sed -n '2,4s/^# //p' "$0"; echo "usage: tests/vm/selftest.sh [--quick]"; exit 0 ;;
  *) echo "selftest.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

here=$(dirname "$(readlink -f "$0")")
run=$here/run.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 code=0

vm() { # runs run.sh; leaves $code, $work/out and $work/err
  code=0
  "$run" -t 60 "$@" > "$work/out" 2> "$work/err" || code=$?
}
check() { # NAME COMMAND...
  local name=$1
  shift
  if "$@" > /dev/null 2>&1; then
    passed=$((passed + 1))
    echo "ok    $name"
  else
    failed=$((failed + 1))
    echo "FAIL  $name"
    echo "      exit status $code; stdout: $(head -c 400 "$work/out" | tr '\n' '|')"
    echo "      stderr: $(tail -c 400 "$work/err" | tr '\n' '|')"
  fi
}
is() { [ "$1" = "$2" ]; }
out_is() { printf '%s\n' "$1" | cmp - "$work/out"; }
err_is() { printf '%s\n' "$1" | cmp - "$work/err"; }
err_has() { grep -q -- "$1" "$work/err"; }

finish() { echo "$passed passed, $failed failed"; [ "$failed" = 0 ]; exit; }

# The image first, so that its one-time messages are in none of the outputs below.
"$here/build-image.sh" "$(realpath -m "${FDBROKER_VM_IMG:-$here/img}")/cloud" 6.12

cat > "$work/words.sh" << 'GUEST'
#!/bin/sh
printf '[%s]' "$@"; echo
echo "$ONE|$TWO|${XDG_RUNTIME_DIR-unset}|$PWD|$(cat words.txt)"
echo to stderr >&2
exit 7
GUEST
echo "from a file" > "$work/words.txt"
words=(-e ONE="it's \$HOME" -e TWO=$'a\nb' -f "$work/words.txt" "$work/words.sh" "a b" "" "it's" '$x"*')
words_out=$'[a b][][it\'s][$x"*]\nit\'s $HOME|a\nb|unset|/t|from a file'
vm "${words[@]}"
check "arguments, variables and extra files arrive as given; stdout alone on stdout" out_is "$words_out"
check "stderr alone on stderr" err_is "to stderr"
check "exit status 7 comes back" is "$code" 7

vm -k 5.0 true
check "a kernel that there is no guest of: 2" is "$code" 2
vm -s sid true
check "a suite that there is no guest of: 2" is "$code" 2
vm
check "no program: 2, with an example" is "$code $(grep -c 'for instance' "$work/err")" "2 1"
vm ./no-such-program
check "a missing program: 2" is "$code" 2
vm -e 1=x true
check "a bad variable: 2" is "$code" 2
[ "${1-}" != --quick ] || finish

"$run" -k 6.1 true
"$run" -t 300 -s bookworm true

vm ls -l /dev/udmabuf /dev/dma_heap/system
check "the dma-buf devices are there, for everybody" is "$(grep -c '^crw-rw-rw-' "$work/out") $code" "2 0"

vm sh -c 'echo to stderr >&2; echo reopened > /dev/stderr'
check "stderr is opened again" err_is $'to stderr\nreopened'

cat > "$work/place.sh" << 'GUEST'
#!/bin/sh
echo "$(id -u) $(id -un) $(ulimit -Sn) $(ulimit -Hn)"
stat -c '%a' /tmp; stat -f -c '%T' /tmp /dev/shm /run; cat /sys/fs/cgroup/cgroup.procs | grep -x 1
: > here && : > /tmp/x && : > /dev/shm/x && : <> /dev/udmabuf && : < /dev/dma_heap/system && echo writable
cat < /dev/stdin
sleep 1000 &
GUEST
vm "$work/place.sh"
check "root: open-files limits, mounts, empty stdin, no wait for stragglers" \
  is "$(xargs < "$work/out") $code" "0 root 1024 65536 1777 tmpfs tmpfs tmpfs 1 writable 0"
vm -u 65534 "$work/place.sh"
check "-u 65534: nobody, with the same limits and devices" \
  is "$(head -1 "$work/out") $(tail -1 "$work/out") $code" "65534 nobody 1024 65536 writable 0"
vm -u 1234 id
check "-u 1234: a user without a name" is "$(cut -d' ' -f1,2 "$work/out")" "uid=1234(u1234) gid=1234(u1234)"

# A dynamic program of this host (not the guest's busybox), in a folder with a space.
mkdir "$work/a b"
cp "$(command -v cksum)" "$work/a b/host cksum"
vm -f "$work/words.txt" "$work/a b/host cksum" --version
check "a dynamic program brings its libraries" grep -q 'GNU coreutils' "$work/out"

# 3 MB to a reader that starts late: not a byte may be lost when the guest powers off.
code=0
sum=$("$run" -t 60 seq 1 450000 2> "$work/err" | { sleep 6; cksum; }) || code=$?
check "a slow reader loses nothing" is "$sum $code" "$(seq 1 450000 | cksum) 0"

vm -t 30 sh -c 'echo early; sleep 1000'
check "the time limit gives 124" is "$code" 124
check "what was printed before the limit is kept" out_is early
check "the time limit is explained on stderr" err_has "not finished after 30 s"
vm sh -c 'echo c > /proc/sysrq-trigger'
check "a dead VM gives 125" is "$code" 125
check "a dead VM shows its console" err_has "Kernel panic"
vm -v true
check "-v shows the kernel console on stderr" err_has "Linux version 6.12"
check "-v leaves stdout alone" is "$(wc -c < "$work/out")" 0

vm -k 6.1 sh -c 'uname -r; ls /dev/dri /dev/udmabuf'
check "-k 6.1: the stock kernel, with vgem and without udmabuf" \
  is "$(sed 's/^6[.]1[.].*/6.1/' "$work/out" | xargs)" "6.1 /dev/dri: card0 renderD128"

# With systemd; twice the boots.
vm -t 300 -s bookworm bash -c 'cat /proc/1/comm; systemctl is-active basic.target; echo to stderr >&2; exit 7'
check "-s bookworm: systemd, both outputs and the exit status" is "$(cat "$work/out" "$work/err" | xargs) $code" \
  "systemd active to stderr 7"
vm -t 300 -s bookworm -u 1234 "${words[@]}"
check "-s bookworm: arguments, variables and files, as another user" out_is "$words_out"

# Two at once, on an image that neither of them finds: one builds, both use it.
(FDBROKER_VM_IMG=$work/img "$run" -t 60 sh -c 'echo first; exit 3' > "$work/first" 2> "$work/first.err") &
first=$!
FDBROKER_VM_IMG=$work/img vm sh -c 'echo second; exit 4'
code_first=0
wait "$first" || code_first=$?
check "two at once do not meet" is "$(cat "$work/first") $code_first $(cat "$work/out") $code" "first 3 second 4"
check "the image was built once" is "$(cat "$work/err" "$work/first.err" | grep -c 'first use')" 1
check "no leftovers of the build" is "$(ls -A "$work/img" | sort | xargs)" ".lock cloud"

# Ended from outside: no QEMU and no temporary folder may stay.
mkdir "$work/tmp"
TMPDIR=$work/tmp "$run" sleep 1000 > /dev/null 2>&1 &
victim=$!
machines() { grep -al "path=${work/\//[/]}/tmp/" /proc/[0-9]*/cmdline 2> /dev/null | wc -l; }
for _ in {1..100}; do
  if [ "$(machines)" -gt 0 ]; then break; fi
  sleep 0.1
done
check "(a run is under way)" [ "$(machines)" -gt 0 ]
kill "$victim"
code=0
wait "$victim" || code=$?
check "SIGTERM ends the machine and cleans up" is "$code $(ls -A "$work/tmp") $(machines)" "143  0"

finish
