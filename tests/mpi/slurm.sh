#!/bin/bash
# Runs a Slurm of its own (slurmctld, slurmd), and under its srun the prefix `fdbroker run --join` and the MPI tests. All
# in network and PID namespaces of its own: it must never meet another Slurm, use a network, or leave a process behind.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
root=$(cd "$here/../.." && pwd)

case ${1-} in
  -h | --help)
    cat << 'HELP'
usage: tests/mpi/slurm.sh [RANKS]

Starts Slurm in namespaces of its own, then runs with its srun: the prefix `fdbroker run --join` (one broker per step, its
end, signals of scancel), prolog and epilog, and `tests/mpi/run.sh srun RANKS` (default 4). Needs root for the namespaces and the packages slurmctld slurmd
slurm-client slurm-wlm-basic-plugins iproute2 (tests/install.sh). Ends with `N passed, N failed`. Exit status: 0 all
passed, 1 not, 77 when it cannot run here.
HELP
    exit 0 ;;
esac
ranks=${1:-4}

cannot() { echo "$1"; exit 77; }
[ "$(id -u)" = 0 ] || cannot "Slurm: its namespaces need root; run: sudo tests/mpi/slurm.sh"
for tool in slurmctld slurmd srun ip unshare gcc; do
  command -v "$tool" > /dev/null || cannot "$tool is not installed; run: sudo tests/install.sh"
done

if [ -z "${FDBROKER_TEST_SLURM-}" ]; then
  # The last process of the namespace takes all others with it.
  exec env FDBROKER_TEST_SLURM=inside timeout -k 5 240 \
    unshare --net --pid --fork --kill-child --mount-proc "$0" "$ranks"
fi

programs=$("$root/tests/programs.py") || exit 1

work=$(mktemp -d)
trap 'umount "$work/cgroup" 2> /dev/null; rm -rf "$work"' EXIT
# A folder of its own: short paths for the sockets, and it must be empty at the end.
export TMPDIR=$work

# ---- Slurm on this machine alone

ip link set lo up
# A name is only looked up where an address other than 127.0.0.1 exists (getaddrinfo(3), AI_ADDRCONFIG).
ip address add 192.0.2.1/32 dev lo
node=$(hostname -s)
mkdir "$work/state" "$work/spool"
cat > "$work/slurm.conf" << CONF
ClusterName=test
SlurmctldHost=$node(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# More cores than there are, so that two jobs run at once.
SlurmdParameters=config_overrides
NodeName=$node NodeAddr=127.0.0.1 CPUs=$((2 * ranks)) State=UNKNOWN
PartitionName=all Nodes=$node Default=YES State=UP
Prolog=$work/prolog
Epilog=$work/epilog
HealthCheckProgram=$work/health
HealthCheckInterval=1
CONF
# The line that systemd/README.md gives; from the time on when the broker of the node is to be looked at.
cat > "$work/health" << SCRIPT
#!/bin/bash
export PATH="$programs:\$PATH" SLURM_CONF="$work/slurm.conf"
export FDBROKER_SOCKET="$work/node/fdbroker/broker.sock" FDBROKER_ADMIN_SOCKET="$work/node/fdbroker-admin/admin.sock"
[ -e "$work/watched" ] || exit 0
$(sed -n 's/^    \(said=.* scontrol update .*\)/\1/p' "$root/systemd/README.md")
echo looked >> "$work/looks"
SCRIPT
chmod +x "$work/health"
# The scripts as a site would have them, except for the broker's place.
for name in prolog epilog; do
  cat > "$work/$name" << SCRIPT
#!/bin/bash
export PATH="$programs:\$PATH" FDBROKER_ADMIN_SOCKET="$work/node/fdbroker-admin/admin.sock"
"$root/systemd/slurm-$name.sh" >> "$work/$name.log" 2>&1
status=\$?
echo "\$SLURM_JOB_ID ended with \$status" >> "$work/${name}s"
exit \$status
SCRIPT
  chmod +x "$work/$name"
done
export SLURM_CONF=$work/slurm.conf
slurmctld > "$work/start" 2>&1 && slurmd >> "$work/start" 2>&1
for _ in {1..100}; do
  sinfo -h -o %T 2> /dev/null | grep -q idle && break
  sleep 0.1
done
if ! sinfo -h -o %T 2> /dev/null | grep -q idle; then
  cat "$work/start" "$work"/*.log >&2
  echo "tests/mpi/slurm.sh: Slurm did not start; its logs are above" >&2
  exit 1
fi

# ---- the prefix

PATH=$programs:$PATH
unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET

passed=0 failed=0
check() { # NAME STATUS [LOG]
  if [ "$2" = 0 ]; then
    passed=$((passed + 1)); echo "ok      $1"
  else
    failed=$((failed + 1)); echo "FAILED  $1"; [ $# -lt 3 ] || tail -n 40 "$3"
  fi
}
step() { timeout -k 5 60 srun -n "$ranks" "$@"; }
# soon COMMAND...: succeeds within 10 s.
soon() {
  for _ in {1..100}; do "$@" && return 0; sleep 0.1; done
  return 1
}
# shellcheck disable=SC2317
no_broker() { ! pgrep -f 'fdbroker (keeper|broker) ' > /dev/null && [ -z "$(find "$work"/fdbroker-*/ -mindepth 1 2> /dev/null)" ]; }
incarnations() { sed -n 's/.*"incarnation":"\([0-9a-f]*\)".*/\1/p' "$1" | sort | uniq -c | awk '{ print $1 }' | xargs; }

# A task waits until all have looked: the broker that the first has started is still there for the last.
# shellcheck disable=SC2016
look='fdbroker status --json; touch "$LOOKS/$SLURM_JOB_ID.$SLURM_PROCID"
  for i in $(seq 500); do [ "$(ls "$LOOKS" | wc -l)" -ge "$WANTED" ] && exit 0; sleep 0.05; done; exit 1'
mkdir "$work/one" "$work/two"

LOOKS=$work/one WANTED=$ranks step fdbroker run --join -- sh -c "$look" > "$work/out" 2>&1
check "srun: $ranks tasks, every one with the prefix" $? "$work/out"
[ "$(incarnations "$work/out")" = "$ranks" ]
check "they share one broker" $? "$work/out"
soon no_broker
check "the broker ends with the last task, and its directory is gone" $?

export LOOKS=$work/two WANTED=$((2 * ranks))
step fdbroker run --join -- sh -c "$look" > "$work/first" 2>&1 &
first=$!
step fdbroker run --join -- sh -c "$look" > "$work/second" 2>&1
second=$?
wait "$first" && [ "$second" = 0 ]
check "two jobs at once on the node" $? "$work/first"
cat "$work/first" "$work/second" > "$work/out"
[ "$(incarnations "$work/out")" = "$ranks $ranks" ]
check "they have a broker each" $? "$work/out"
soon no_broker
check "both brokers have ended" $?

# Slurm signals every process of the step, the broker among them.
# shellcheck disable=SC2016
step fdbroker run --join -- sh -c 'trap "fdbroker status --json; exit 0" TERM
  echo "$SLURM_JOB_ID" > "$0/job"; touch "$0/up.$SLURM_PROCID"; for i in $(seq 600); do sleep 0.05; done; exit 1' \
  "$work" > "$work/out" 2>&1 &
signalled=$!
all_up() { [ "$(find "$work" -maxdepth 1 -name 'up.*' | wc -l)" = "$ranks" ]; }
soon all_up
check "tasks that clean up at SIGTERM are up" $? "$work/out"
scancel --signal=TERM "$(cat "$work/job")"
wait "$signalled"
check "scancel --signal=TERM: they end as they like" $? "$work/out"
[ "$(incarnations "$work/out")" = "$ranks" ]
check "and still have their broker" $? "$work/out"
soon no_broker
check "which has ended after them" $?

# ---- the epilog

unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET
grep -q ' ended with 0$' "$work/epilogs" && ! grep -qv ' ended with 0$' "$work/epilogs" && [ ! -s "$work/epilog.log" ]
check "slurmd runs the epilog after each job; without a broker it is silent" $? "$work/epilogs"

# ---- the prolog

! grep -qv ' ended with 0$' "$work/prologs" && [ "$(wc -l < "$work/prologs")" -ge "$(wc -l < "$work/epilogs")" ]
check "slurmd runs the prolog before each job; without a broker it ends with 0" $? "$work/prologs"
[ -s "$work/prolog.log" ] && ! grep -qv 'no broker serves this node (status 3)' "$work/prolog.log"
check "and logs that no broker serves" $? "$work/prolog.log"
prolog() { SLURM_JOB_ID=4710 "$@" "$work/prolog"; }
! prolog env FDBROKER_PROLOG_STRICT=1
check "a strict one fails" $? "$work/prolog.log"

# A process that a job has left behind is known by its cgroup, which stays.
mkdir "$work/cgroup" && mount -t cgroup2 none "$work/cgroup"
job=4711 cgroup=$work/cgroup/fdbroker-test-$$/slurmstepd.scope
mkdir -p "$cgroup/job_$job"
fdbrokerd --private "$work/node" --set limits.keep_ttl_ms=3600000 > "$work/node.log" 2>&1 &
node_broker=$!
soon test -S "$work/node/fdbroker/broker.sock"
check "a broker of the node" $? "$work/node.log"
admin() { FDBROKER_ADMIN_SOCKET=$work/node/fdbroker-admin/admin.sock fdbroker "$@"; }
: > "$work/prolog.log"
prolog env FDBROKER_PROLOG_STRICT=1 && [ ! -s "$work/prolog.log" ]
check "with a broker the prolog is silent, a strict one too" $? "$work/prolog.log"
admin drain > /dev/null && ! prolog env FDBROKER_PROLOG_STRICT=1 && grep -q 'being drained' "$work/prolog.log"
check "a strict one keeps a job from a broker that is being drained" $? "$work/prolog.log"
admin drain --undo > /dev/null
# shellcheck disable=SC2016
FDBROKER_SOCKET=$work/node/fdbroker/broker.sock sh -c 'echo $$ > "$0/cgroup.procs"; exec fdbroker demo --ranks 2 --buffers 8 --hold 60' \
  "$cgroup/job_$job" > "$work/left.log" 2>&1 &
left=$!
# shellcheck disable=SC2317
has_all() { [ "$(admin ls --filter "JOB == slurm:$job" --json | grep -o '"allocation":' | wc -l)" = 16 ]; }
soon has_all
check "what it has registered is the job's" $? "$work/left.log"
SLURM_JOB_ID=$((job + 1)) "$work/epilog"
has_all && [ ! -s "$work/epilog.log" ]
check "another job's epilog leaves it alone" $? "$work/epilog.log"
SLURM_JOB_ID=$job "$work/epilog"
[ "$(admin ls --filter 'STATE != ended' --json | grep -o '"allocation":' | wc -l)" = 0 ]
check "the job's epilog revokes all of it" $? "$work/epilog.log"
grep -q "job $job: 16 allocations .* revoked" "$work/epilog.log" && grep -q 'demo-rank' "$work/epilog.log"
check "and logs how much, and who has duplicates" $? "$work/epilog.log"

# Kept memory outlives the processes of the job, and still belongs to the job.
kept=$((job + 2))
mkdir "$cgroup/job_$kept"
gcc -O2 -Wall -Wextra -Werror "$here/leave.c" -o "$work/leave" -I "$root/libclient/capi/include" -L "$programs/capi" -lfdbroker &&
  LD_LIBRARY_PATH=$programs/capi FDBROKER_SOCKET=$work/node/fdbroker/broker.sock \
    sh -c 'echo $$ > "$0/cgroup.procs"; exec "$1"' "$cgroup/job_$kept" "$work/leave" > "$work/leave.log" 2>&1
check "a process of a job keeps memory in the broker, and ends" $? "$work/leave.log"
# shellcheck disable=SC2317
has_left() { admin jobs --json | grep -q "\"job\":\"slurm:$kept\",[^}]*\"connections\":0,[^}]*\"left_allocations\":1[,}]"; }
soon has_left
check "the job has no process any more, and is listed with what it has left" $? "$work/node.log"
SLURM_JOB_ID=$kept "$work/epilog"
grep -q "job $kept: 1 allocation .* revoked" "$work/epilog.log" && [ "$(admin ls --filter 'STATE != ended' --json | grep -o '"allocation":' | wc -l)" = 0 ]
check "its epilog revokes that too" $? "$work/epilog.log"
! admin jobs --json | grep -q "slurm:$kept"
check "and nothing is left of the job" $? "$work/node.log"
# shellcheck disable=SC2317
is_idle() { sinfo -h -o %T | grep -q idle; }
timeout -k 5 60 srun -n 1 true && soon is_idle
check "the node takes the next job" $? "$work/slurmd.log"
# ---- the health check

# shellcheck disable=SC2317
looked_twice() { [ "$(wc -l < "$work/looks")" -ge 2 ]; }
looked_and_idle() { : > "$work/looks"; soon looked_twice && is_idle; }
touch "$work/watched"
looked_and_idle
check "slurmd runs the health check: a broker that serves leaves the node in service" $? "$work/slurmd.log"
admin drain > /dev/null; looked_and_idle
check "so does a warning: it is being drained" $? "$work/slurmd.log"
kill "$node_broker"
# shellcheck disable=SC2317
is_out() { sinfo -h -o '%T %E' | tee "$work/out" | grep -q '^drain.* critical: no broker answers'; }
soon is_out
check "without a broker the node is out of service, and its reason says so" $? "$work/out"
rm "$work/watched"
scontrol update NodeName="$node" State=RESUME && soon is_idle
check "and back" $? "$work/slurmd.log"
kill "$left" 2> /dev/null
wait "$left" "$node_broker" 2> /dev/null
soon rmdir "$cgroup/job_$job" && rmdir "$cgroup/job_$kept" "$cgroup" "${cgroup%/*}"

# ---- real MPI under srun

"$here/run.sh" srun "$ranks" > "$work/mpi" 2>&1
grep -v -E '^[0-9]+ passed, [0-9]+ failed$' "$work/mpi"
read -r p f < <(awk '/^[0-9]+ passed, [0-9]+ failed$/ { p = $1; f = $3 } END { print p + 0, f + 0 }' "$work/mpi")
[ $((p + f)) -gt 0 ] || f=1
echo "$((passed + p)) passed, $((failed + f)) failed"
[ $((failed + f)) = 0 ]
