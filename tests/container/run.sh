#!/bin/bash
# The broker and containers, made with unshare(1): ranks in user, PID, mount and network namespaces of their own, into
# which only the directory of the clients' socket is mounted; and daemons in namespaces. Real daemons, real processes.
# Must never touch the system outside its own directory and namespaces.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)

case ${1-} in
  '') ;;
  -h | --help)
    cat << 'HELP'
usage: tests/container/run.sh

Builds the daemon, the command and the examples (release), then checks from containers: deposit in one and acquire in another of
the same user; another user, and another listener, refused; the death of a container noticed; the generation page
read-only; the administrator's socket out of reach; a daemon in a user namespace and in a PID namespace; pods of one uid, in
cgroups like the kubelet's, on a listener that tells them apart.

As root all of it runs, the daemon as an unprivileged user. Without root only what user namespaces allow runs;
the rest is named as not run. Exit status 77: not even user namespaces are allowed here. No options.
HELP
    exit 0 ;;
  *) echo "tests/container/run.sh: unknown argument '$1' (it takes none)" >&2; exit 2 ;;
esac

for tool in unshare setpriv nsenter; do
  command -v "$tool" > /dev/null && continue
  echo "$tool is missing; install util-linux"; exit 77
done

# Uids that no machine uses: the broker's and those of two users with ranks.
service=61001 alice=61002 mallory=61003
# The group of monitors.
monitors=61004
# Longest wait for a condition; after it a process that hangs is ended.
limit_s=30
is_root=; [ "$(id -u)" = 0 ] && is_root=1
work=$(mktemp -d /tmp/fdb-container.XXXXXX)
log=$work/log children=()
cleanup() {
  local pid
  for pid in "${children[@]}"; do kill -9 "$pid" 2> /dev/null; done
  wait 2> /dev/null
  remove_cgroups
  rm -rf "$work"
}
trap cleanup EXIT
unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET FDBROKER_CONFIG XDG_RUNTIME_DIR

passed=0 failed=0
check() {
  local name=$1; shift
  if "$@" > "$log" 2>&1; then
    passed=$((passed + 1)); echo "ok      $name"
  else
    failed=$((failed + 1)); echo "FAILED  $name"; tail -n 30 "$log" | sed 's/^/        /'
  fi
}
# eventually COMMAND...: waits until the command succeeds.
eventually() {
  local end=$((SECONDS + limit_s))
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || { echo "never: $*"; return 1; }
    sleep 0.05
  done
}
# refuses TEXT COMMAND...: the command fails and prints TEXT.
refuses() {
  local text=$1 out got=0; shift
  # The library's own deadlines bound the wait.
  out=$("$@" 2>&1) || got=$?
  printf 'status %s: %s\n' "$got" "$out"
  [ "$got" != 0 ] && [[ $out == *"$text"* ]]
}

programs=$("$root/tests/programs.py") || exit 1
# Copies that other users can read: a checkout may be private.
chmod 755 "$work"
bin=$work/bin; mkdir "$bin"
cp "$programs/fdbrokerd" "$programs/fdbroker" "$programs/examples/producer" "$programs/examples/consumer" "$bin/"
chmod -R a+rX "$bin"

as() { # as UID COMMAND...: this user, and nothing of root.
  local uid=$1; shift
  [ "$uid" = "$(id -u)" ] && exec "$@"
  exec setpriv --reuid "$uid" --regid "$uid" --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all -- "$@"
}

# container UID DIRECTORY COMMAND...: the command as process 1 of PID, mount, network, IPC and UTS namespaces, in a root
# of its own: the system's libraries, the programs and the directory of the clients' socket, all read-only.
container() {
  local uid=$1 directory=$2; shift 2
  exec unshare --pid --net --mount --ipc --uts --fork --kill-child --propagation private -- \
    bash -c "$inside" container "$work/root" "$bin" "$uid" "$directory" "$@"
}
inside='
set -e
root=$1 bin=$2 uid=$3 directory=$4; shift 4
mount -t tmpfs -o mode=755 tmpfs "$root"
mkdir -p "$root"/{proc,usr,bin-of-test,run/fdbroker,tmp}
read_only() { mount --bind "$1" "$2"; mount -o remount,bind,ro "$2"; }
read_only /usr "$root/usr"
for name in bin sbin lib lib64; do
  if [ -L "/$name" ]; then cp -P "/$name" "$root/$name"
  elif [ -d "/$name" ]; then mkdir "$root/$name"; read_only "/$name" "$root/$name"; fi
done
read_only "$bin" "$root/bin-of-test"
read_only "$directory" "$root/run/fdbroker"
mount -t proc proc "$root/proc"
export FDBROKER_SOCKET=/run/fdbroker/broker.sock PATH=/bin-of-test:/usr/sbin:/usr/bin:/sbin:/bin
exec chroot "$root" setpriv --reuid "$uid" --regid "$uid" --clear-groups --no-new-privs \
  --inh-caps=-all --bounding-set=-all -- "$@"
'
mkdir "$work/root"
# A pipe that this script holds open, and never writes to.
mkfifo "$work/never"
exec {hold}<> "$work/never"

# in_container UID DIRECTORY COMMAND...: the same, and waits for its end.
in_container() { (container "$@"); }
# started VARIABLE COMMAND...: starts it in the background; its input stays open as long as this script runs.
started() {
  local -n pid=$1; shift
  "$@" < "$work/never" {hold}>&- &
  pid=$!
  children+=("$pid")
}
# The first process of a container: the child of its unshare(1).
init_of() { tr -d ' \n' < "/proc/$1/task/$1/children"; }

# broker NAME COMMAND...: a daemon that serves $work/NAME/run/broker.sock, started by the command.
broker() {
  local name=$1; shift
  # However this script ends, the daemon ends with it.
  "$@" "$bin/fdbrokerd" --socket "$work/$name/run/broker.sock" --admin-socket "$work/$name/admin/admin.sock" \
    --config "$work/$name/config.toml" --until-eof 0 --ready-fd 1 > "$work/$name/ready" 2> "$work/$name/log" \
    < "$work/never" {hold}>&- &
  children+=("$!")
  eventually is_ready "$name" || { cat "$work/$name/log"; return 1; }
}
# Waits for its readiness, not for its sockets: it sets their modes after it has made them.
is_ready() { grep -qs READY "$work/$1/ready"; }
place() { # place NAME UID: the directories of a daemon of that user.
  mkdir -p "$work/$1/run" "$work/$1/admin"
  : > "$work/$1/config.toml"
  chmod 755 "$work/$1" "$work/$1/run"; chmod 700 "$work/$1/admin"
  [ -z "$is_root" ] || chown -R "$2" "$work/$1/run" "$work/$1/admin"
}
fdbroker() { # fdbroker NAME ARGUMENTS...: the command, as the administrator of that daemon.
  local name=$1; shift
  FDBROKER_ADMIN_SOCKET=$work/$name/admin/admin.sock "$bin/fdbroker" "$@"
}
clients() { fdbroker "$1" status --json | sed -n 's/.*"connections":{"now":\([0-9]*\).*/\1/p'; }
has_clients() { [ "$(clients "$1")" = "$2" ]; }
has_handle() { [ "$(wc -c < "$1")" = 129 ]; }

# ---- containers of ranks, one daemon outside

outside() {
  place node "$service"
  mkdir -p "$work/node/second"; chmod 755 "$work/node/second"; chown "$service" "$work/node/second"
  cat > "$work/node/config.toml" << TOML
admin_socket = "$work/node/admin/admin.sock"
[[listener]]
path = "$work/node/run/broker.sock"
[[listener]]
path = "$work/node/second/broker.sock"
TOML
  # Only the configuration file can name two listeners.
  as "$service" "$bin/fdbrokerd" --config "$work/node/config.toml" --until-eof 0 --ready-fd 1 > "$work/node/ready" \
    2> "$work/node/log" < "$work/never" {hold}>&- &
  children+=("$!")
  check "a daemon of an unprivileged user serves two listeners" both_listen
  local run=$work/node/run second=$work/node/second producer init handle

  started producer container "$alice" "$run" producer > "$work/handle"
  check "a rank in a container deposits" eventually has_handle "$work/handle"
  handle=$work/handle
  check "another container of the same user acquires: every byte right" \
    shows ' 0 of them wrong' in_container "$alice" "$run" consumer < "$handle"
  check "a container of another user is refused" \
    refuses NotPermitted in_container "$mallory" "$run" consumer < "$handle"
  check "another user outside every container is refused: the handle is useless to it" \
    refuses NotPermitted as "$mallory" env FDBROKER_SOCKET="$run/broker.sock" "$bin/consumer" < "$handle"
  check "the same user, by the other listener, is another domain" \
    refuses NotPermitted in_container "$alice" "$second" consumer < "$handle"
  check "the same user outside every container acquires" \
    shows ' 0 of them wrong' as "$alice" env FDBROKER_SOCKET="$run/broker.sock" "$bin/consumer" < "$handle"
  check "the same user in a user namespace of its own acquires, with one warning: it cannot tell who serves" \
    acquires_with_one_warning as "$alice" env FDBROKER_SOCKET="$run/broker.sock" unshare -U -r "$bin/consumer" < "$handle"
  # As a pod with hostUsers: false: 65,536 users are mapped, the broker's is none of them.
  as_pod "$alice"
  check "so does it in one that maps as many users as a pod's" acquires_with_one_warning in_pod "$run" "$bin/consumer" < "$handle"
  impostor "$run"

  init=$(init_of "$producer")
  check "the ledger knows the container's first process by its pid on the host" \
    shows "\"owner_pid\":$init," fdbroker node ls --json
  check "the page is mapped read-only in the container, and cannot be made writable" page_is_read_only "$init"
  check "no socket of the administrator is in the container" \
    shows_all $'broker.sock\nview.sock' in_container "$alice" "$run" ls /run/fdbroker
  check "a rank outside cannot ask the administrator's socket" \
    refuses '' as "$alice" env FDBROKER_ADMIN_SOCKET="$work/node/admin/admin.sock" "$bin/fdbroker" status

  socket_is_restored "$run"
  check "the ledger has one client, for as long as it lives" eventually has_clients node 1
  kill -9 "$init"
  check "the death of a container's first process is noticed" eventually has_clients node 0
  check "its memory has ended with it" refuses_gone in_container "$alice" "$run" consumer < "$handle"
}
acquires_with_one_warning() {
  local out
  out=$("$@" 2>&1) || { echo "$out"; return 1; }
  echo "$out"
  [[ $out == *' 0 of them wrong'* ]] && [ "$(grep -c 'unknown in this user namespace' <<< "$out")" = 1 ]
}
# as_pod UID: makes a user namespace in which UID is the user 1000, and others than 65,536 users are unknown.
as_pod() {
  unshare -U cat < "$work/never" {hold}>&- &
  pod=$!
  children+=("$pod")
  eventually has_own_users "$pod" || return 1
  printf '0 200000 1000\n1000 %s 1\n1001 201001 64535\n' "$1" > "$work/map"
  # By one write(2), which is all that the kernel takes.
  cat "$work/map" > "/proc/$pod/uid_map"; cat "$work/map" > "/proc/$pod/gid_map"
}
has_own_users() { [ "$(readlink "/proc/$1/ns/user")" != "$(readlink /proc/self/ns/user)" ]; }
in_pod() { # in_pod DIRECTORY COMMAND...: as the user 1000 of that namespace.
  local directory=$1; shift
  (exec nsenter -t "$pod" -U -S 1000 -G 1000 -- env FDBROKER_SOCKET="$directory/broker.sock" "$@")
}

# Another user serves a socket in a directory that is not its own.
impostor() {
  local open=$work/open server
  mkdir "$open"; chmod 755 "$open"
  started server python3 "$root/tests/common/impostor.py" "$open/broker.sock" "$work/heard"
  eventually listens "$open/broker.sock"
  check "a client in a container is refused where another user serves, by name" \
    refuses "served by uid $mallory" in_container "$alice" "$open" consumer < "$work/handle"
  check "so is root in a container" refuses "served by uid $mallory" in_container 0 "$open" consumer < "$work/handle"
  check "and nothing was sent to that server" eventually hears_nothing
}
listens() { grep -q " 00010000 0005 01 [0-9]* $1\$" /proc/net/unix; }
hears_nothing() { [ "$(cat "$work/heard")" = $'0\n0' ]; }
# Root of a container that has the directory mounted for writing, as no container should.
socket_is_restored() {
  local run=$1 inode deed; inode=$(stat -c %i "$run/broker.sock")
  for deed in 'rm broker.sock' 'rm broker.sock; mkdir broker.sock; touch broker.sock/x' 'echo x > other; mv other broker.sock' \
    "python3 -c 'import os, socket; s = socket.socket(1, 5); s.bind(\"s\"); s.listen(); os.rename(\"s\", \"broker.sock\")'" \
    'chmod 0 broker.sock' 'chmod 700 .'; do
    check "root of a container does '${deed:0:40}': the same socket stands there again" root_does "$run" "$inode" "$deed"
  done
  check "the status says that the sockets are in order" shows '"sockets_away":0,"sockets_unkept":0' fdbroker node status --json
  check "the journal says what was done" grep -q 'was removed\|was replaced' "$work/node/log"
  check "and the metrics" shows 'fdbroker_sockets_mended_total 6' fdbroker node metrics
  rm -rf "$run"/broker.sock.*
}
root_does() {
  local run=$1 inode=$2 deed=$3
  unshare --pid --net --mount --ipc --uts --fork --kill-child --propagation private -- \
    sh -c "mount --bind $run $work/root && cd $work/root && $deed" || return 1
  eventually is_inode "$run/broker.sock" "$inode" && eventually is_mode 755 "$run" && eventually is_mode 666 "$run/broker.sock"
}
is_inode() { [ "$(stat -c %i "$1" 2>&1)" = "$2" ]; }
is_mode() { [ "$(stat -c %a "$2" 2>&1)" = "$1" ]; }
both_listen() { eventually is_ready node && test -S "$work/node/run/broker.sock" -a -S "$work/node/second/broker.sock"; }
shows() { # shows TEXT COMMAND...: succeeds and says this.
  local text=$1 out; shift
  out=$("$@" 2>&1) || { echo "$out"; return 1; }
  echo "$out"
  [[ $out == *"$text"* ]]
}
shows_all() { local text=$1 out; shift; out=$("$@" 2>&1); echo "$out"; [ "$out" = "$text" ]; }
refuses_gone() {
  local out got=0
  out=$("$@" 2>&1) || got=$?
  echo "status $got: $out"
  [ "$got" != 0 ] && [[ $out == *OwnerGone* || $out == *Stale* ]]
}
# The generation page among a process's mappings: readable and shared, and it can never be made writable (no `mw`).
page_is_read_only() {
  local flags
  grep 'generations' "/proc/$1/maps" || return 1
  ! grep 'generations' "/proc/$1/maps" | grep -qv ' r--s ' || return 1
  flags=$(awk '/generations/ { found = 1 } found && /^VmFlags/ { print; exit }' "/proc/$1/smaps")
  echo "$flags"
  [[ $flags == *' rd '* && $flags != *' mw '* ]]
}

# ---- pods of one uid

. "$root/tests/container/tenants.sh"
printf a > "$work/a"; printf b > "$work/b"; chmod 644 "$work/a" "$work/b"

# ---- daemons in namespaces

# In a user namespace all users that it does not map look the same (the overflow uid): they must not become one domain.
in_user_namespace() {
  local self=$1 run=$work/user/run producer
  place user "$self"
  broker user as "$self" unshare -U -r || return 1
  started producer by "$self" "$run" "$bin/producer" > "$work/user-handle"
  check "a daemon in a user namespace serves the user that it maps" eventually has_handle "$work/user-handle"
  check "and grants to it" shows ' 0 of them wrong' by "$self" "$run" "$bin/consumer" < "$work/user-handle"
  if [ -z "$is_root" ]; then
    not_run "container: a user whom the daemon's user namespace does not map is refused" "needs root"
  else
    check "a user whom the daemon's user namespace does not map is refused" \
      refuses NotPermitted by "$mallory" "$run" "$bin/consumer" < "$work/user-handle"
  fi
  kill "$producer"
}
by() { # by UID DIRECTORY COMMAND...: a client of that user.
  local uid=$1 directory=$2; shift 2
  as "$uid" env FDBROKER_SOCKET="$directory/broker.sock" "$@"
}

# For a daemon in a PID namespace the clients outside have no pid: everything works, but the ledger cannot name them.
in_pid_namespace() {
  local self=$1 run=$work/pid/run producer
  place pid "$self"
  local how=(exec unshare --pid --mount --fork --kill-child --mount-proc)
  if [ -n "$is_root" ]; then
    how+=(--propagation private -- setpriv --reuid "$self" --regid "$self" --clear-groups --)
  else
    how+=(--user --map-root-user --)
  fi
  broker pid "${how[@]}" || return 1
  started producer by "$self" "$run" "$bin/producer" > "$work/pid-handle"
  check "a daemon in a PID namespace serves clients outside it" eventually has_handle "$work/pid-handle"
  check "and grants to them" shows ' 0 of them wrong' by "$self" "$run" "$bin/consumer" < "$work/pid-handle"
  check "it cannot name them: no pid" shows '"owner_pid":null' fdbroker pid ls --json
  kill -9 "$producer"
  check "their death is noticed all the same" eventually has_clients pid 0
}

if [ -z "$is_root" ] && ! unshare -U -r true 2> /dev/null; then
  echo "user namespaces are not allowed here; run it as root"
  exit 77
fi
if [ -n "$is_root" ]; then
  outside
  tenants
else
  for name in "deposit, acquire, refusal and death in containers" "the page in a container" "another user's server" "tenants by pods"; do
    not_run "container: $name" "needs root, to make containers of several users"
  done
fi
self=$(id -u); [ -z "$is_root" ] || self=$alice
check_started() { "$@" || { failed=$((failed + 1)); echo "FAILED  $* did not start"; }; }
check_started in_user_namespace "$self"
check_started in_pid_namespace "$self"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
