#!/bin/bash
# `fdbroker audit` against faults planted on purpose: a private broker and real clients. Audit must name each kind of fault
# with its process and fd, and nothing on a clean node. Must never end a process that it has not started.
# It starts a copy of itself as another user and in a virtual machine; the copy has nothing else of this folder.
case ${1-} in --inside*) ;; *) . "$(dirname "$(readlink -f "$0")")/../common/start.sh" ;; esac
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)

mode=all bin=
while [ $# -gt 0 ]; do case $1 in
  --vm) mode=vm ;;
  --inside | --inside-user | --late) mode=$1 bin=$2; shift ;;
  -h | --help)
    cat << 'HELP'
usage: tests/audit/run.sh [--vm]

Builds the command and the test client, starts a private broker and plants, one
by one and all at once: a leaked duplicate, a second duplicate under one lease, an owner's copies, a duplicate in a child
after fork, fds in the queue of a socket that nobody reads, a forgotten lease, a lease of what is not mapped any more, a
mapping without a lease, a kept allocation without owner, ended memory of a stopped client, copies of ended memory, a lease of ended memory for
more than a minute, a mapping in a child that is a client, an fd table of a thread, a process without its first thread,
a file of an io_uring, an fd in a socket of a process that is no client, a stopped owner. `fdbroker audit` must name
each with its process and fd, and nothing else. As root it is done for another user, too. No root needed. It takes at least
a minute.

--vm: the same on real dma-bufs, and dma-bufs that no process has, in a virtual machine (tests/vm/run.sh).
HELP
    exit 0 ;;
  *) echo "tests/audit/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac; shift; done

if [ "$mode" = all ] || [ "$mode" = vm ]; then
  target=$("$root/tests/programs.py") || exit 1
  place=$(mktemp -d /tmp/fdb-audit.XXXXXX)
  trap 'rm -rf "$place"' EXIT
  if [ "$mode" = vm ]; then
    # The guest has only a busybox. It takes up to ten minutes beside others: the limit catches what hangs.
    files=(-f "$target/examples/audit-client" -f "$(readlink -f "$0")" -f "$(readlink -f /bin/bash)")
    files+=(-f "$(ldd /bin/bash | awk '/libtinfo/ { print $3 }')")
    "$root/tests/vm/run.sh" -t 3000 "${files[@]}" -e LD_LIBRARY_PATH=/t -e FDBROKER_TEST_MEMORY=udmabuf -e TMPDIR=/tmp \
      "$target/fdbroker" run -- /t/bash /t/run.sh --inside /t
    exit
  fi
  # Copies that another user can read: a checkout may be private.
  cp "$target/fdbroker" "$target/examples/audit-client" "$0" "$place/"
  chmod -R a+rX "$place"
  unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET FDBROKER_CONFIG XDG_RUNTIME_DIR
  log=$place/log passed=0 failed=0
  part() { # part COMMAND...: prints what it checks; its last line counts.
    "$@" 2>&1 | tee "$log"
    local p f status=${PIPESTATUS[0]}
    [ "$status" -le 1 ] || echo "FAILED  its script has ended with status $status"
    read -r p f < <(awk '/^[0-9]+ passed, [0-9]+ failed$/ { p = $1; f = $3 } END { print p + 0, f + 0 }' "$log")
    [ $((p + f)) -gt 0 ] || f=1
    passed=$((passed + p)) failed=$((failed + f))
  }
  part "$place/fdbroker" run -- "$place/run.sh" --inside "$place"
  if [ "$(id -u)" = 0 ]; then
    # A uid that no machine uses.
    part setpriv --reuid 61002 --regid 61002 --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all -- \
      "$place/fdbroker" run -- "$place/run.sh" --inside-user "$place"
  else
    not_run "audit by a user beside root" "needs root"
  fi
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]; exit
fi

# ---- inside a private broker

# Longest wait for a condition.
limit_s=30
work=$(mktemp -d /tmp/fdb-audit-inside.XXXXXX)
log=$work/log clients=() passed=0 failed=0
# A pipe that this script holds open, and never writes to: the clients' input.
mkfifo "$work/never"
exec {hold}<> "$work/never"
cleanup() {
  local pid
  for pid in ${clients[@]+"${clients[@]}"}; do kill -9 "$pid" 2> /dev/null; done
  wait 2> /dev/null
  rm -rf "$work"
}
trap cleanup EXIT

check() {
  local name=$1; shift
  if "$@" > "$log" 2>&1; then
    passed=$((passed + 1)); echo "ok      $name"
  else
    failed=$((failed + 1)); echo "FAILED  $name"; tail -n 30 "$log" | sed 's/^/        /'
  fi
}
eventually() {
  local end=$((SECONDS + limit_s))
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || { echo "never: $*"; return 1; }
    sleep 0.05
  done
}

is_ready() { grep -qs '^ready ' "$1"; }
is_ready_or_gone() { is_ready "$1" || ! kill -0 "$started" 2> /dev/null; }
# client ARGUMENTS...: starts a client. Its output is then in $said; $pid and $fd are those of its last line.
number=0
client() {
  number=$((number + 1))
  # A subshell counts for itself: what one of its clients has said must not be taken for another's.
  local out=$work/out.$BASHPID.$number
  "$bin/audit-client" "$@" < "$work/never" > "$out" 2> "$out.err" {hold}>&- &
  started=$!
  clients+=("$started")
  eventually is_ready_or_gone "$out" && is_ready "$out" || {
    # Without the client no later check could pass.
    echo "FAILED  client $* did not get ready: $(tail -n 5 "$out.err")"
    echo "$passed passed, $((failed + 1)) failed"; exit 1
  }
  read -r _ pid fd < <(grep '^ready ' "$out")
  said=$(grep -v '^ready ' "$out")
}
end() { # end PID: of a client, and the ledger knows.
  kill -9 "$1" 2> /dev/null
  wait "$1" 2> /dev/null
  eventually forgot "$1"
}
forgot() { ! "$bin/fdbroker" holders "pid:$1" > /dev/null 2>&1; }

# audit ARGUMENTS...: its output is then in $report, its exit status in $status, only the findings in $findings.
audit() {
  status=0
  report=$("$bin/fdbroker" audit --json "$@") || status=$?
  findings=$(sed 's/.*"findings":\[\(.*\)\],"more_findings".*/\1/' <<< "$report")
  echo "exit status $status: $report"
}
count() { grep -o '"kind":"' <<< "$findings" | wc -l; }
clean() { audit; [ "$status" = 0 ] && [ -z "$findings" ]; }
has() { # has KIND PID FD: FD empty: none.
  [[ $findings == *"{\"kind\":\"$1\",\"pid\":$2,\"fds\":[$3],"* ]] || { echo "not there: $1 pid $2 fd $3"; return 1; }
}
only() { # only KIND PID FD: this, and nothing else.
  audit
  [ "$status" = 5 ] && has "$@" && [ "$(count)" = 1 ]
}
# plant NAME KIND ROLE HANDLE: with one client of this role, audit has one finding, of this kind; without it, none. With
# `evict` set, the broker holds no fd of the allocation any more.
evict=
plant() {
  local name=$1 kind=$2 role=$3; shift 3
  client "$role" "$@"
  local planted=$started
  [ -z "$evict" ] || check "  (evicted)" is_evicted "$1"
  # Where there are two fds, audit may name either.
  case $role in
    copy | own) check "$name" excess "$kind" "$pid" ;;
    forgotten | unmapped | mapped | child) check "$name" only "$kind" "$pid" "" ;;
    *) check "$name" only "$kind" "$pid" "$fd" ;;
  esac
  end "$planted"
  check "  and nothing when it is gone" clean
}
is_evicted() { # is_evicted HANDLE: evicts it, if it is not.
  "$bin/fdbroker" evict "$1" > /dev/null; "$bin/fdbroker" show "$1" | tee /dev/stderr | grep -q evicted
}
excess() { # excess KIND PID: named with every fd that may be the one too many.
  audit
  [ "$status" = 5 ] && [ "$(count)" = 1 ] && [[ $findings =~ \{\"kind\":\"$1\",\"pid\":$2,\"fds\":\[[0-9]+(,[0-9]+)+\], ]]
}
text_says() { # text_says TEXT ARGUMENTS...: the table.
  local text=$1 out; shift
  out=$("$bin/fdbroker" audit "$@")
  echo "$out"
  [[ $out == *"$text"* ]]
}
exits() { local expected=$1 got=0; shift; "$@" || got=$?; echo "exit status $got"; [ "$got" = "$expected" ]; }

# ---- in a broker of its own: a client that keeps a lease of ended memory

if [ "$mode" = --late ]; then
  client produce 2; doomed=$started
  mapfile -t ending <<< "$said"
  client hold "${ending[1]}"
  end "$doomed"
  echo "late $FDBROKER_ADMIN_SOCKET $pid"
  read -r _
  exit 0
fi
if [ "$mode" = --inside ]; then
  late_since=$SECONDS
  "$bin/fdbroker" run -- "$BASH" "$0" --late "$bin" < "$work/never" > "$work/late" {hold}>&- 2> /dev/null &
  clients+=("$!")
  eventually grep -q '^late ' "$work/late"
  read -r _ late_socket late_pid < "$work/late"
fi
late() { FDBROKER_ADMIN_SOCKET=$late_socket "$@"; }

# not_planted WHY: this user or kernel cannot have the fault.
not_planted() {
  echo "not run: audit: $1"
  [ -z "${FDBROKER_NOT_RUN_LOG-}" ] || { echo "audit: $1" >> "$FDBROKER_NOT_RUN_LOG"; passed=$((passed + 1)); }
}
notes() { # notes KIND PID: among what is no fault.
  audit
  [[ ${report#*'"notes":['} == *"{\"kind\":\"$1\",\"pid\":$2,"* ]]
}
both() { # both KIND PID FD KIND PID FD: these two findings, and no other.
  audit
  [ "$status" = 5 ] && has "$1" "$2" "$3" && has "$4" "$5" "$6" && [ "$(count)" = 2 ]
}
only() { audit; [ "$status" = 5 ] && has "$1" "$2" "$3" && [ "$(count)" = 1 ]; } # KIND PID FD
# Its variables are its own; what it starts is ended with it.
in_a_shell() { (clients=(); trap 'kill -9 "${clients[@]}" 2> /dev/null' EXIT; "$@"); }

# A broker of its own is killed, with an owner of what it held: what it does not hear of is named all the same, before and
# after the end of the grace time.
after_a_crash() {
  local place=$work/crash doomed held leak stray parent broker before
  mkdir "$place"
  begin_broker() {
    "$bin/fdbroker" broker --private "$place" --set limits.grace_ms=20000 < "$work/never" {hold}>&- 2>> "$place/log" &
    broker=$!
    clients+=("$broker")
  }
  export FDBROKER_SOCKET=$place/fdbroker/broker.sock FDBROKER_ADMIN_SOCKET=$place/fdbroker-admin/admin.sock
  begin_broker
  eventually "$bin/fdbroker" status > /dev/null 2>&1
  client produce 2; doomed=$started
  mapfile -t lost <<< "$said"
  client hold "${lost[1]}"; held=$started
  client leak "${lost[1]}"; leak="$pid $fd"
  client stray "${lost[1]}"; stray="$pid $fd" parent=$started
  before=$(both leak ${leak} stray ${stray}) || { echo "$before"; return 1; }
  kill -9 "$broker" "$doomed"
  wait "$broker" "$doomed" 2> /dev/null
  begin_broker
  eventually "$bin/fdbroker" holders "pid:$held" > /dev/null 2>&1 || return 1
  eventually both leak ${leak} stray ${stray} || return 1
  eventually grep -q "the broker before was killed" "$place/log" || return 1
  eventually both leak ${leak} stray ${stray} || return 1
  # Both have a lease of it; the stray's process ends with its parent.
  end "$held"
  end "$parent"
  eventually only ended_copy ${leak} || return 1
}

# What hides fds from /proc/PID/fd, or is no fault of one memory; a user sees it of its own processes.
odd_ones() {
  local handle=$1 doomed leaker mapper sender ending
  plant "a mapping in a child that became a client" stray_mapping child "$handle"
  plant "a thread with an fd table of its own" thread_table thread "$handle"
  plant "a first thread that has ended" zombie_leader headless "$handle"
  if "$bin/audit-client" can-ring 2> /dev/null; then
    plant "an fd that only a ring has" io_uring ring "$handle"
  else
    not_planted "files of an io_uring: io_uring_setup(2) is refused"
  fi
  audit > /dev/null
  if [[ $report == *"lists of Unix sockets"* ]]; then
    echo "not planted here: an fd unread in a process that is no client (this kernel has no unix_diag)"
  else
    client stranger "$handle"; sender=$started
    clients+=("$pid")
    check "an fd unread in a process that is no client" only in_flight "$pid" "$fd"
    end "$sender"
    check "  and its sender is gone" only in_flight "$pid" "$fd"
    kill -9 "$pid"
    check "  and nothing when it is gone" eventually clean
  fi

  client produce 2; doomed=$started
  mapfile -t ending <<< "$said"
  client leak "${ending[1]}"; leaker=$started leak="$pid $fd"
  client mapped "${ending[0]}"; mapper=$started
  end "$doomed"
  check "memory that has ended: a duplicate and a mapping, no lease" \
    both ended_copy ${leak} ended_copy "$mapper" ""
  check "  and it says whose it was, and why it ended" text_says "OWNER_GONE"
  check "  and the owner's process" text_says "owned by process $doomed"
  end "$leaker"
  end "$mapper"
  check "  and nothing when they are gone" clean

  kill -STOP "$producer"
  check "an owner that is stopped" only stopped_owner "$producer" ""
  kill -CONT "$producer"
  check "  and nothing when it goes on" eventually clean
  check "memory that the broker does not know: a note" notes unknown "$honest"
}

check "a node without clients: no finding" clean
# Of what a broker has for itself, its log of what is kept is there only with a service manager that stores fds.
client manager "$work/notify"
# shellcheck disable=SC2016 # the inner shell expands it
with_a_log() {
  FDSTORE=4096 NOTIFY_SOCKET=$work/notify "$bin/fdbroker" run -- "$BASH" -c '
    pid=$("$0" status --json | grep -o "\"pid\":[0-9]*" | head -n 1)
    ls -l "/proc/${pid#*:}/fd" | grep memfd:fdbroker-kept-objects && "$0" audit --json' "$bin/fdbroker"
}
check "a broker under a service manager that stores fds: no finding" with_a_log
client produce 8
producer=$started
mapfile -t handles <<< "$said"
client honest "${handles[@]}"
honest=$started
check "an owner, and a client with fds and mappings: no finding" clean

if [ "$mode" = --inside-user ]; then
  plant "a user's own process: its leak" leak leak "${handles[0]}"
  check "it says which processes the user may not read" text_says "not readable for this user; run as root"
  odd_ones "${handles[1]}"
  echo "not planted by a user: a dma-buf that no process has; fds and mappings of other users' processes; a client that keeps" \
    "ended memory for more than a minute (as root, above)"
  end "$honest"
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]; exit
fi

# Handles 0, 2, ... are ranges of one arena; each of handles 1, 3, ... is memory of its own.
for which in 1 0; do
  what="a memory of its own"; [ "$which" = 1 ] || what="a range of an arena"
  handle=${handles[$which]}
  plant "$what: a duplicate that outlives its lease" leak leak "$handle"
  plant "$what: two duplicates, one lease" leak copy "$handle"
  plant "$what: a duplicate in a child after fork" stray stray "$handle"
  plant "$what: an fd in a socket that nobody reads" in_flight in-flight "$handle"
  plant "$what: an fd closed, its lease not given back" forgotten forgotten "$handle"
  plant "$what: unmapped, its lease not given back" forgotten unmapped "$handle"
  plant "$what: mapped without a lease" stray_mapping mapped "$handle"
done
plant "an owner's copies of its own fd" leak own

# The broker holds no fd of an evicted allocation: audit recognises copies all the same.
evict=yes
what="an evicted range of an arena"
handle=${handles[0]}
plant "$what: a duplicate that outlives its lease" leak leak "$handle"
plant "$what: two duplicates, one lease" leak copy "$handle"
plant "$what: a duplicate in a child after fork" stray stray "$handle"
plant "$what: an fd in a socket that nobody reads" in_flight in-flight "$handle"
plant "$what: an fd closed, its lease not given back" forgotten forgotten "$handle"
plant "$what: mapped without a lease" stray_mapping mapped "$handle"
evict=
for index in 0 2 4 6; do
  check "an arena evicted, its owner and a client as they should be" is_evicted "${handles[$index]}"
done
check "  and no finding" clean

# After a recall a dma-buf is a new one; copies of the first one still belong to the allocation.
client leak "$handle"; leaker=$started leak="$pid $fd"
check "evicted, and asked for again" is_evicted "$handle"
client hold "$handle"; holder=$started
check "  a duplicate of what it was before" only leak ${leak}
end "$leaker"
check "  and nothing when it is gone" clean
end "$holder"

# Ended memory: its owner has ended, a lease is left.
client produce 2; doomed=$started
mapfile -t ending <<< "$said"
client hold "${ending[1]}"; holder=$started
client leak "${ending[1]}"; leaker=$started leak="$pid $fd"
end "$doomed"
check "ended memory that somebody holds: a duplicate without lease" only leak ${leak}
end "$leaker"
end "$holder"
check "  and nothing when they are gone" clean

odd_ones "${handles[1]}"
if [ "${FDBROKER_TEST_MEMORY-}" = udmabuf ]; then
  # The fd lies in a message alone; the list of the kernel (debugfs) has the buffer.
  client produce 2; doomed=$started
  mapfile -t ending <<< "$said"
  client in-flight "${ending[0]}"; flight=$started in_flight="$pid $fd"
  end "$doomed"
  unheld() {
    audit
    has in_flight ${in_flight} && [[ $findings == *'{"kind":"ended_unheld","pid":null,'* ]] && [ "$(count)" = 2 ]
  }
  check "a dma-buf that has ended, and that no process has" unheld
  end "$flight"
  check "  and nothing when it is gone" clean
else
  echo "not planted here: a dma-buf that no process has (tests/audit/run.sh --vm does it)"
fi

if [ "${FDBROKER_TEST_MEMORY-}" != udmabuf ]; then
  check "a broker that was killed: copies that no library declares, in the grace time and later" \
    in_a_shell after_a_crash
fi

# ---- all at once; faults that stay behind come last

client leak "${handles[1]}"; leak="$pid $fd"
client stray "${handles[3]}"; stray="$pid $fd"
client in-flight "${handles[5]}"; flight="$pid $fd"
client forgotten "${handles[2]}"; forgotten=$pid
client mapped "${handles[4]}"; mapped=$pid
client produce 2; doomed=$started
mapfile -t ending <<< "$said"
client hold "${ending[1]}"; stopped=$pid
kill -STOP "$stopped"
end "$doomed"
kept=$("$bin/audit-client" orphan < /dev/null)
kept=${kept#kept }
audit > "$work/all"
all() { cat "$work/all"; has "$@"; }
check "all at once: the leak" all leak ${leak}
check "all at once: the stray duplicate" all stray ${stray}
check "all at once: the fd in flight" all in_flight ${flight}
check "all at once: the forgotten lease" all forgotten "$forgotten" ""
check "all at once: the mapping" all stray_mapping "$mapped" ""
check "all at once: ended memory of a stopped client" all pinned "$stopped" ""
orphan_is_named() { cat "$work/all"; [[ $findings == *"{\"kind\":\"orphan\",\"pid\":null,"*"\"allocation\":\"$kept\""* ]]; }
check "all at once: the orphan" orphan_is_named
nothing_else() { cat "$work/all"; [ "$(count)" = 7 ] && [ "$status" = 5 ]; }
check "all at once: and nothing else" nothing_else
all_again() { audit; has leak ${leak}; }
only_of() { audit --pid "$1"; [ "$(count)" = 1 ] && [ "$status" = 5 ]; }
check "only one process: its finding alone" only_of "${leak% *}"
check "an honest process alone: no finding" exits 0 "$bin/fdbroker" audit --pid "$honest"
check "the table says what to do" text_says "kill -CONT"
in_a_file() {
  local file=$work/fdbroker-audit.prom got=0
  "$bin/fdbroker" audit --textfile "$work" || got=$?
  cat "$file"
  [ "$got" = 5 ] && grep -qx 'fdbroker_audit_findings{finding="leak"} 1' "$file" && grep -qx 'fdbroker_audit_findings{finding="drift"} 0' "$file" &&
    grep -qx 'fdbroker_audit_complete 1' "$file" || return 1
  exits 3 env FDBROKER_ADMIN_SOCKET="$work/none" "$bin/fdbroker" audit --textfile "$work" || return 1
  cat "$file"
  grep -qx 'fdbroker_audit_complete 0' "$file" && ! grep -q '^fdbroker_audit_findings{' "$file"
}
check "a file for node_exporter: each kind counted, and without a broker none" in_a_file
separate=(unshare --pid --fork --kill-child --mount-proc --propagation private)
if ! "${separate[@]}" true 2> /dev/null; then
  # Not in a guest of tests/vm: it is there for the dma-bufs, and this check has nothing to do with them.
  why="audit: a broker in another PID namespace: needs root, and util-linux's unshare(1)"
  echo "not run: $why"
  [ -z "${FDBROKER_NOT_RUN_LOG-}" ] || { echo "$why" >> "$FDBROKER_NOT_RUN_LOG"; passed=$((passed + 1)); }
else
  # The pids that a broker in another PID namespace names belong to other processes here.
  elsewhere() {
    local got=0 out
    mkdir "$work/elsewhere"
    TMPDIR=$work/elsewhere "${separate[@]}" \
      "$bin/fdbroker" run -- sh -c ': > "$0"; exec cat' "$work/elsewhere.serves" < "$work/never" {hold}>&- \
      2> "$work/elsewhere.log" &
    clients+=("$!")
    local socket
    eventually test -e "$work/elsewhere.serves" || { cat "$work/elsewhere.log"; return 1; }
    socket=$(compgen -G "$work/elsewhere/fdbroker-*/fdbroker-admin/admin.sock")
    out=$(FDBROKER_ADMIN_SOCKET=$socket "$bin/fdbroker" audit 2>&1) || got=$?
    echo "exit status $got: $out"
    [ "$got" = 1 ] && [[ $out == *"PID namespace"* ]]
  }
  check "a broker in another PID namespace: said, and nothing compared" elsewhere
fi
# A job at work under a cap that evicts all the time: whenever audit looks, there is no fault.
at_work() {
  local memory=memfd
  [ "${FDBROKER_TEST_MEMORY-}" != udmabuf ] || memory=udmabuf
  # shellcheck disable=SC2016 # the inner shell expands it
  "$bin/fdbroker" run --max-fds 64 -- "$BASH" -c '
    "$0" demo --memory "$1" --ranks 6 --buffers 60 --hold 3 --timeout 120 --json & demo=$!
    while kill -0 "$demo" 2> /dev/null; do "$0" audit --json || status=$?; done
    wait "$demo" && exit ${status-0}' "$bin/fdbroker" "$memory"
}
check "a job under a tight cap, looked at again and again: no finding" at_work
# Objects that are replaced all the time: the broker has another file at the same number whenever audit looks.
beside_puts() { # beside_puts COUNT COMMAND...: runs the command so often, each time beside the same replacing.
  local left=$1 failures=0 putter; shift
  { while "$bin/fdbroker" put replaced "$log" --replace > /dev/null; do :; done; } & putter=$!
  while [ "$left" -gt 0 ]; do
    left=$((left - 1))
    "$@" || failures=$((failures + 1))
  done
  kill "$putter"; wait "$putter" 2> /dev/null
  echo "failures: $failures"
  "$bin/fdbroker" rm replaced > /dev/null
  [ "$failures" = 0 ]
}
# What stays behind above is found; nothing else may be.
no_drift() { audit; [[ $findings != *'"kind":"drift"'* ]]; }
check "ten audits beside objects that are replaced: no drift" beside_puts 10 no_drift
check "  and a planted leak is still found" beside_puts 1 all_again
minute_is_over() { [ $((SECONDS - late_since)) -gt 62 ]; }
limit_s=90 eventually minute_is_over
# The clock of an emulated guest can be behind that of the shell: the broker says when the minute is over.
late_is_found() { late only pinned "$late_pid" ""; }
limit_s=300
check "ended memory that a client leases for more than a minute" eventually late_is_found
check "no broker: exit status 3" exits 3 env FDBROKER_ADMIN_SOCKET="$work/none" "$bin/fdbroker" audit
kill -0 "$producer" || failed=$((failed + 1))
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
