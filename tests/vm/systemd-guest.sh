#!/bin/bash
# Runs inside the virtual machine of tests/vm/systemd.sh, as root, where systemd is process 1: installs the broker and tries
# it as a service. Each check is one line. Must never wait for a time: it waits for a condition, at most $patience_s.
# With the argument `short` it leaves out the checks that are the same under every systemd: reload, kill -9, watchdog. Where there are
# packages, it installs the first of them, upgrades to the second one in place of the first restart, purges it, and tries in short what
# install.sh installs.
set -uo pipefail
selection=${1-full}
cd /t || exit 1
tar -xf fdbroker.tar
source_tree=/t/fdbroker
client=/t/client
cp "$source_tree/target/release/vm-client" "$client"
files=/tmp/clients
export FDBROKER_SOCKET=/run/fdbroker/broker.sock FDBROKER_TEST_MEMORY=udmabuf
# The guest is emulated, and its host may be busy.
patience_s=60
uids="1001 1002 1003"
version=$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
log=/tmp/check.log
passed=0 failed=0

# ---- checks

# check NAME COMMAND...: one check; the command's output is shown when it fails.
check() {
  local name=$1; shift
  if "$@" > "$log" 2>&1; then
    passed=$((passed + 1)); echo "ok      $name"
  else
    failed=$((failed + 1)); echo "FAILED  $name"; tail -n 12 "$log" | sed 's/^/        /'
    # Later checks may fail for the same reason: they get less time.
    patience_s=20
  fi
}
exec 9>&1
# say TEXT: tells how far a long check is.
say() { echo "        $(cut -d. -f1 /proc/uptime) s: $*" >&9; }
is() { echo "is: $1"; echo "should be: $2"; [ "$1" = "$2" ]; }
# soon COMMAND...: succeeds within $patience_s.
soon() {
  local end=$((SECONDS + patience_s))
  until "$@" > /tmp/soon 2>&1; do
    [ $SECONDS -lt $end ] || { echo "not within $patience_s s: $*"; cat /tmp/soon; return 1; }
    sleep 0.1
  done
}
show() { systemctl show -P "$1" fdbrokerd.service; }
pid() { show MainPID; }
is_active() { is "$(show ActiveState)/$(show SubState)" active/running; }
# A new process serves: not the one with this pid.
is_new() { is_active && [ "$(pid)" != "$1" ] && [ "$(pid)" != 0 ]; }
status() { timeout "$patience_s" fdbroker status --json; }
# number KEY: this number of the status, such as connections or open_leases.
number() { status | grep -oE "\"$1\":(\{\"now\":)?[0-9]+" | grep -oE '[0-9]+$'; }
as() { local uid=$1; shift; setpriv --reuid "$uid" --regid "$uid" --clear-groups "$@"; }
journal() { journalctl --no-pager -o cat -u fdbrokerd.service "$@"; }

# ---- clients

# owner UID KIND COUNT NAME: starts an owner in the background, which deposits. Its handles are in $files/UID/NAME, its pid
# in pid_of.
declare -A pid_of
owner() {
  # No function here: the pid must be the client's.
  setpriv --reuid "$1" --regid "$1" --clear-groups "$client" deposit "$2" "$3" "$files/$1/$4" > "$files/$1/$4.log" 2>&1 &
  pid_of[$1/$4]=$!
}
has_deposited() { test -s "$files/$1/$2" || { cat "$files/$1/$2.log"; false; }; }
# hammer UID FILE: starts a consumer that never stops; its counts are in $files/UID/FILE.report.
hammer() {
  setpriv --reuid "$1" --regid "$1" --clear-groups "$client" hammer "$files/$1/$2" "$files/$1/$2.report" \
    > "$files/$1/$2.report.log" 2>&1 &
  pid_of[$1/$2.report]=$!
}
report() { cat "$files/$1/$2.report" 2> /dev/null; }
# count UID FILE KEY: this number of a consumer's report; 0 if the report does not have it.
count() { local n; n=$(report "$1" "$2" | grep -oE "(^| )$3=[0-9]+" | grep -oE '[0-9]+$'); echo "${n:-0}"; }
# goes_on UID FILE: it has had at least 5 more since the call of `mark`.
declare -A marked
mark() { local uid; for uid in $uids; do marked[$uid/$1]=$(count "$uid" "$1" ok); done; }
goes_on() {
  local uid
  for uid in $uids; do
    echo "uid $uid: $(report "$uid" "$1"); before: ok=${marked[$uid/$1]}"
    [ "$(count "$uid" "$1" ok)" -ge $((marked[$uid/$1] + 5)) ] || return 1
  done
}
# only_ok FILE: all consumers saw only success, and all their leases are good.
only_ok() {
  local uid
  for uid in $uids; do
    echo "uid $uid: $(report "$uid" "$1"); $(tail -n 3 "$files/$uid/$1.report.log")"
    report "$uid" "$1" | grep -qxE "good=$(kept "$uid" "$1") ok=[0-9]+" || return 1
  done
}
# kept UID FILE: leases that the consumer keeps.
kept() { echo $(($(wc -l < "$files/$1/$2") / 2)); }
# no_worse FILE CODE...: all consumers saw only success and these codes.
no_worse() {
  local file=$1 uid codes; shift
  codes=$(IFS='|'; echo "$*")
  for uid in $uids; do
    echo "uid $uid: $(report "$uid" "$file")"
    ! report "$uid" "$file" | tr ' ' '\n' | grep -vE "^(good|ok|$codes)=[0-9]+$" | grep . || return 1
  done
}
# all_good FILE: the leases that were kept all the time are valid, and their bytes are right.
all_good() {
  local uid
  for uid in $uids; do
    echo "uid $uid: $(report "$uid" "$1")"
    [ "$(count "$uid" "$1" good)" = "$(kept "$uid" "$1")" ] || return 1
  done
}
stop_hammers() {
  local uid file=$1
  for uid in $uids; do touch "$files/$uid/$file.report.stop"; done
  for uid in $uids; do wait "${pid_of[$uid/$file.report]}"; done
  return 0
}
# get UID FILE: how many answered what. everywhere FILE ANSWER: so for each user.
get() { as "$1" "$client" get "$files/$1/$2" 2>&1; }
everywhere() {
  local uid
  for uid in $uids; do is "$(get "$uid" "$1")" "$2" || return 1; done
}
kill_owners() {
  local uid
  for uid in $uids; do kill -9 "${pid_of[$uid/$1]}"; wait "${pid_of[$uid/$1]}" 2> /dev/null; done
  return 0
}

# ---- installation

# Every path outside of what changes by itself.
files_of_system() { find /etc /usr /lib/systemd /var/lib/systemd /run/fdbroker* ! -name '*-' 2> /dev/null | grep -vE 'ld.so.cache|timers/' | sort; }
by_install_sh() { "$source_tree/systemd/install.sh" --prefix /usr --from "$source_tree/target/release" --any-state --without-libraries; }
echo "-- systemd $version, Linux $(uname -r)"
packages=$source_tree/packages
if [ -d "$packages" ]; then
  # mmdebstrap's own, which was there when it packed this root: it forbids packages to start a service.
  rm -f /usr/sbin/policy-rc.d
  files_before=$(files_of_system)
  check "dpkg -i" dpkg -i "$packages/1.deb"
  say "installed"
  check "the sockets are active and enabled, the service is neither" is "$(systemctl is-active fdbrokerd.socket fdbrokerd-admin.socket \
    fdbrokerd.service; systemctl is-enabled fdbrokerd.socket fdbrokerd-admin.socket fdbrokerd.service)" "active
active
inactive
enabled
enabled
disabled"
else
  check "install.sh" by_install_sh
fi
check "the user fdbroker: no shell, no home" grep -qE '^fdbroker:[^:]*:[0-9]+:[0-9]+:[^:]*:/:.*nologin$' /etc/passwd
check "directories: owner and mode" is "$(stat -c '%n %U %a' /run/fdbroker /run/fdbroker-admin | xargs)" \
  "/run/fdbroker fdbroker 755 /run/fdbroker-admin fdbroker 700"
verify() {
  local said
  said=$(systemd-analyze verify fdbrokerd.service fdbrokerd{,-admin}.socket fdbroker-{metrics,textfile,audit}.service \
    fdbroker-{textfile,audit}.timer 2>&1) || { echo "$said"; return 1; }
  is "$said" ""
}
check "systemd-analyze verify: clean" verify
if [ "$version" -ge 254 ]; then preserve=yes; else preserve=""; fi
check "the fd store outlives a stop from systemd 254 on" is "$(show FileDescriptorStorePreserve)" "$preserve"
exposure=$(systemd-analyze security --no-pager fdbrokerd.service | sed -n 's/.*Overall exposure level[^:]*: \([0-9.]*\).*/\1/p')
check "systemd-analyze security: $exposure, at most 1.0" awk -v e="$exposure" 'BEGIN { exit !(e != "" && e <= 1.0) }'

# The defaults that the example names are the daemon's own under the unit's limit; half of the memory is another number here.
example_defaults() {
  local documented real
  documented=$(sed -nE 's/^(\[.*\])$/\1/p; s/^#(\[\[.*\]\])$/\1/p; s/^#([a-z_]+ = .*)  # \(none\)$/\1/
    s/^([a-z_]+) = .*/\1 = none/p; s/^#([a-z_]+ = .*)$/\1/p' /etc/fdbroker/fdbrokerd.toml | grep -v '^kept_bytes = ' | sort)
  real=$(ulimit -n 1048576 && fdbrokerd --check-config --config /dev/null |
    sed -nE 's/^(\[.*\])$/\1/p; s/^# ([a-z_]+ = none)  # .*/\1/p; s/^([a-z_]+ = .*)  # .*/\1/p' | grep -v '^kept_bytes = ' | sort)
  diff <(echo "$documented") <(echo "$real")
}
check "the example configuration names the real defaults" example_defaults
# An administrator's change, so that kept allocations outlive these checks.
sed -i 's/^#keep_ttl_ms = .*/keep_ttl_ms = 3600000/; s/^#grace_ms = .*/grace_ms = 30000/' /etc/fdbroker/fdbrokerd.toml

# ---- start

check "systemctl start fdbrokerd: ready, sockets with it" bash -c \
  'systemctl start fdbrokerd.service && systemctl is-active fdbrokerd.service fdbrokerd.socket fdbrokerd-admin.socket'
check "it runs as fdbroker, without capabilities" is \
  "$(stat -c %U "/proc/$(pid)"), $(sed -n 's/^\(CapEff\|CapBnd\|NoNewPrivs\):\t//p' "/proc/$(pid)/status" | xargs)" \
  "fdbroker, 0000000000000000 0000000000000000 1"
check "its fd table is as large as the unit says" grep -qE '^Max open files +1048576 +1048576' "/proc/$(pid)/limits"
check "it tells systemd what it does" test -n "$(show StatusText)"
check "sockets: owner and mode" is \
  "$(stat -c '%n %U %a' /run/fdbroker/{broker,view}.sock /run/fdbroker-admin/admin.sock | xargs)" \
  "/run/fdbroker/broker.sock fdbroker 666 /run/fdbroker/view.sock fdbroker 666 /run/fdbroker-admin/admin.sock fdbroker 600"
check "an administrator is served" bash -c 'fdbroker status | grep -q "^broker pid"'
check "others see their own part" bash -c "setpriv --reuid 1001 --regid 1001 --clear-groups fdbroker status --json | grep -q '\"scope\":\"own\"'"
check "others are not administrators" bash -c "! setpriv --reuid 1001 --regid 1001 --clear-groups fdbroker drain"

# ---- the units for monitoring

page() { { printf 'GET /metrics HTTP/1.1\r\n\r\n' >&5; cat <&5; } 5<> /dev/tcp/127.0.0.1/9400; }
scraped() { page | tr -d '\r' > /tmp/page && grep -qx 'fdbroker_up 1' /tmp/page && grep -qx 'fdbroker_serves_clients 1' /tmp/page; }
check "fdbroker-metrics: starts" systemctl start fdbroker-metrics.service
check "it serves the broker's numbers" soon scraped
systemctl stop fdbroker-metrics.service
files=/var/lib/prometheus/node-exporter
check "without the directory of node_exporter the timers' services do nothing" systemctl start fdbroker-textfile.service fdbroker-audit.service
mkdir -p "$files"
check "with it: both end well" systemctl start fdbroker-textfile.service fdbroker-audit.service
check "the metrics are there" grep -qx 'fdbroker_serves_clients 1' "$files/fdbroker.prom"
check "the audit is, and has seen all" grep -qx 'fdbroker_audit_complete 1' "$files/fdbroker-audit.prom"

stop_all() { systemctl stop fdbrokerd.socket fdbrokerd-admin.socket fdbrokerd.service 2>&1; }
mkdir -p $files
for uid in $uids; do install -d -o "$uid" -g "$uid" -m 0700 "$files/$uid"; install -o "$uid" /dev/null "$files/$uid/empty"; done
stop_all
systemctl start fdbrokerd.socket fdbrokerd-admin.socket
check "with the sockets alone it does not run" is "$(show ActiveState)" inactive
# The library gives up when hello takes long, as a start may on this emulated machine; applications then try again.
check "the first client starts it" soon bash -c "setpriv --reuid 1001 --regid 1001 --clear-groups $client get $files/1001/empty"
check "now it runs" soon is_active
inode() { stat -c %i /run/fdbroker/broker.sock; }
inode_at_first=$(inode)
rm /run/fdbroker/broker.sock
check "the service manager's socket is put back when somebody removes it" soon bash -c "[ \$(stat -c %i /run/fdbroker/broker.sock) = $inode_at_first ]"
check "and all sockets could be" is "$(number sockets_unkept)" 0
# The numbers without clients, after a first connection: the daemon must come back to them.
quiet() { is "$(number connections) $(number allocations) $(number open_leases) $(number mapped_leases)" "0 0 0 0"; }
check "quiet at first" soon quiet
fds_of_daemon() { find "/proc/$(pid)/fd" -mindepth 1 | wc -l; }
fds_at_first=$(fds_of_daemon)

# ---- three users

deposited() {
  local uid
  for uid in $uids; do has_deposited "$uid" "$1" || return 1; done
}
for uid in $uids; do
  owner "$uid" recallable 20 recallable
  owner "$uid" resident 10 resident
  owner "$uid" keep 6 keep
  owner "$uid" keep 6 orphan
done
for name in recallable resident keep orphan; do check "three users deposit: $name" soon deposited $name; done
orphans="ok=6"
kill_owners orphan
check "what a dead owner asked to keep is there" everywhere orphan "$orphans"
# Objects of each user, and another large one; their makers end at once.
objects=5
makers_of_objects() {
  local uid
  for uid in $uids; do as "$uid" "$client" keep $objects "kept/$uid" 4096 || return 1; done
}
objects_are() {
  local uid
  for uid in $uids; do is "$(as "$uid" "$client" objects $objects "kept/$uid" 2>&1)" "$1=$objects" || return 1; done
}
check "three users keep objects" makers_of_objects
check "they outlive their makers" objects_are ok
memory_of_daemon() { show MemoryCurrent; }
large_object() {
  local before after
  before=$(memory_of_daemon)
  as 1001 "$client" keep 1 large 33554432 || return 1
  after=$(memory_of_daemon)
  echo "the service had $before bytes, and has $after"
  [ "$after" -lt $((before + 16777216)) ]
}
check "the pages of an object are not the service's" large_object
no_stranger_finds_objects() { is "$(as 1002 "$client" objects $objects kept/1001 2>&1)" "NotFound=$objects"; }
check "no user finds objects of another" no_stranger_finds_objects
strangers() {
  local uid other name
  for uid in $uids; do
    for other in $uids; do
      [ "$uid" != "$other" ] || continue
      for name in recallable resident keep orphan; do
        cp "$files/$other/$name" "$files/$uid/stolen"; chown "$uid" "$files/$uid/stolen"
        echo "uid $uid with handles of uid $other, $name:"
        is "$(get "$uid" stolen)" "NotPermitted=$(wc -l < "$files/$other/$name")" || return 1
      done
    done
  done
}
check "no user gets what another shares: NOT_PERMITTED for each" strangers

for uid in $uids; do
  # The first comes back after a crash, the second does not.
  as "$uid" sh -c "cd $files/$uid && cat recallable keep orphan > lasting"
  hammer "$uid" lasting
  hammer "$uid" resident
done
mark lasting; mark resident
check "three users under load" soon goes_on lasting
check "three users under load, resident memory" soon goes_on resident

# ---- restart

restarts=("systemctl restart fdbrokerd.service")
# The load must not keep dpkg from its work: on this emulated machine it would take minutes to start the package's scripts.
[ ! -d "$packages" ] || restarts=("nice -n-19 dpkg -i $packages/2.deb")
# The second one goes on with what the first one restored.
[ "$selection" != full ] || restarts+=("systemctl restart fdbrokerd.service")
owners="recallable resident keep orphan"
everything_is_there() {
  local name n
  for name in $owners; do
    n=$(wc -l < "$files/1001/$name")
    echo "$name:"; everywhere "$name" "ok=$n" || return 1
  done
  echo "objects:"; objects_are ok
}
restart_under_load() {
  local before allocations restart
  for restart in "${restarts[@]}"; do
    before=$(pid) allocations=$(number allocations)
    timeout 400 $restart || { journal -n 20; return 1; }
    is_new "$before" || { journal -n 20; return 1; }
    say "$(journal -n 20 | grep 'go on in' | tail -n 1), store $(show NFileDescriptorStore)"
    is "$(number allocations)" "$allocations" || return 1
    mark lasting; mark resident
    soon goes_on lasting && soon goes_on resident || { journal -n 20; return 1; }
    say "clients go on: $(report 1001 lasting)"
  done
}
check "${restarts[*]##*/} under load: a new process, the same ledger, clients go on" restart_under_load
check "no client saw an error, a disconnect or a lost lease" only_ok lasting
check "nor those of resident memory" only_ok resident
check "every handle works, a dead owner's included" everything_is_there
# The list of what is kept, and both ends of the carrier of the fds of objects and allocations and of two empty ones.
store_holds_the_kept_only() { is "$(show NFileDescriptorStore)" 7; }
check "the store has what is kept and the lists of it, nothing else" soon store_holds_the_kept_only

consumers_of_resident_end() {
  stop_hammers resident
  only_ok resident
}

# ---- reload

reload_checks() {
  reload() { systemctl reload fdbrokerd.service; }
  allocations_cap() { sed -i "/^\[caps.client\]/,\$ s/^#\?allocations = .*/$1/" /etc/fdbroker/fdbrokerd.toml; }
  refuses_six() {
    # The library waits for room until its deadline, 20 s.
    as 1001 timeout 50 "$client" deposit resident 6 "$files/1001/late" > /tmp/late 2>&1
    cat /tmp/late
    grep -q 'NO_QUOTA.*allocations = 5' /tmp/late
  }
  before=$(pid)
  allocations_cap 'allocations = 5'
  check "systemctl reload, with a lower cap" reload
  check "a client's sixth allocation is refused: NO_QUOTA, allocations = 5" soon refuses_six
  check "who had more keeps it" everything_is_there
  echo 'colour = 1' >> /etc/fdbroker/fdbrokerd.toml
  refuses_reload() { ! reload; }
  check "a reload fails for a configuration that cannot be read" refuses_reload
  check "it changes nothing, and is named" bash -c \
    'for i in $(seq 100); do journalctl --no-pager -u fdbrokerd.service | grep -q colour && exit 0; sleep 0.1; done; exit 1'
  sed -i '/^colour/d' /etc/fdbroker/fdbrokerd.toml
  allocations_cap '#allocations = 524288'
  reload
  takes_six() {
    local result=0
    owner 1001 resident 6 late
    soon has_deposited 1001 late || result=$?
    kill -9 "${pid_of[1001/late]}"
    wait "${pid_of[1001/late]}" 2> /dev/null
    return $result
  }
  check "SIGHUP raises it again" takes_six
  check "all that in one process" is "$(pid)" "$before"
  echo 'colour = 1' >> /etc/fdbroker/fdbrokerd.toml
  restart_broken() { systemctl restart fdbrokerd.service; is_new "$before"; }
  check "a restart with it: a broker serves, with what was there" restart_broken
  records() { journalctl --no-pager -o cat -p err _SYSTEMD_UNIT=fdbrokerd.service "_PID=$(pid)"; }
  check "one record says why, under -p err, with key and remedy" is "$(records | grep -c 'colour = 1.*correct the line')/$(records | wc -l)" 1/1
  check "and so does the status" is "$(number config_refused)" 1
  check "who had something keeps it" everything_is_there
  sed -i '/^colour/d' /etc/fdbroker/fdbrokerd.toml
  reload
  takes_mended() { is "$(number config_refused)" 0; }
  check "a mended one is taken by a reload" soon takes_mended
  check "and no client noticed" only_ok lasting
}
[ "$selection" != full ] || reload_checks
check "consumers of resident memory end" consumers_of_resident_end

# ---- crash

# After a crash there is, as documented, the memory that owners can give again, and kept memory.
after_crash() {
  check "$1: a new process serves" soon is_new "$2"
  check "$1: handles of living owners and kept ones work" soon lasting_are_there
  check "$1: kept objects have their bytes" soon objects_are ok
  check "$1: what nobody can give again answers LOST" soon everywhere resident "Lost=10"
  mark lasting
  check "$1: clients go on" soon goes_on lasting
  check "$1: their leases are valid" soon all_good lasting
  check "$1: they saw nothing worse than NOT_CONNECTED" no_worse lasting NotConnected disconnected reconnected
  kill_owners resident
  for uid in $uids; do mv "$files/$uid/resident" "$files/$uid/former"; owner "$uid" resident 10 resident; done
  check "$1: new deposits are taken" soon deposited resident
  check "$1: no handle of before names any of them" everywhere former "Lost=10"
}
lasting_are_there() { everywhere recallable ok=20 && everywhere keep ok=6 && everywhere orphan ok=6; }
# hang: a user's file server hangs, and so does a lane that closes a file of it. ended_hang: it goes on.
hang() {
  mkdir -p /tmp/hang
  rm -f /tmp/hang.thread
  "$client" hung-serve /tmp/hang > /tmp/hang.thread 2>&1 &
  server=$!
  soon test -s /tmp/hang.thread || return 1
  its_root=/proc/$server/task/$(cat /tmp/hang.thread)/root
  "$client" hung-deposit "$its_root/tmp/hang/hung" 1003 > /tmp/hang.log 2>&1 &
  hung=$!
  soon is_hung
}
# Lanes that wait for a file server, in D state once they were killed.
hung_lanes() {
  local lane
  for lane in /proc/[0-9]*; do
    [ "$(cat "$lane/comm" "$lane/wchan" 2> /dev/null)" != "fdbroker-lane
request_wait_answer" ] || echo "${lane#/proc/}"
  done
}
is_hung() { cat /tmp/hang.log; [ -n "$(hung_lanes)" ]; }
still_hangs() { is "$(hung_lanes | wc -l)" 1; }
no_longer_hangs() { is "$(hung_lanes)" ""; }
ended_hang() { kill -9 "$server" "$hung"; wait "$server" "$hung" 2> /dev/null; soon no_longer_hangs; }
is_reaped() { [ ! -e "/proc/$1" ]; }
# Whoever waits for the old process waits for TimeoutStopSec's 30 s. The start itself takes an emulated guest on a busy host
# up to 13 s.
serves_at_once() {
  local at=$SECONDS
  soon is_new "$1" && soon status > /dev/null || return 1
  echo "after $((SECONDS - at)) s"; [ $((SECONDS - at)) -le 25 ]
}
hung_checks() {
  check "a close hangs in a lane" hang
  before=$(pid) allocations=$(number allocations)
  check "hung close: restart, the main process ends and the next one serves" timeout 60 systemctl restart fdbrokerd.service
  check "hung close, restart: a new process at once" serves_at_once "$before"
  check "hung close, restart: the one before is reaped" is_reaped "$before"
  check "hung close, restart: the call still hangs" still_hangs
  check "hung close, restart: the same ledger" is "$(number allocations)" "$allocations"
  check "hung close, restart: every handle works" everything_is_there
  mark lasting
  check "hung close, restart: clients go on" soon goes_on lasting
  check "doctor names the lane" bash -c 'fdbroker doctor | grep "in D state in request_wait_answer"'
  check "the call returns" ended_hang
  check "a close hangs in a lane again" hang
}
crash_checks() {
  hung_checks
  before=$(pid)
  kill -9 "$before"
  check "hung close, kill -9: the next one serves at once" serves_at_once "$before"
  check "hung close, kill -9: the one before is reaped" is_reaped "$before"
  check "hung close, kill -9: the call still hangs" still_hangs
  after_crash "kill -9" "$before"
  check "the call returns" ended_hang

  mkdir -p /etc/systemd/system/fdbrokerd.service.d
  printf '[Service]\nWatchdogSec=10s\n' > /etc/systemd/system/fdbrokerd.service.d/test.conf
  systemctl daemon-reload
  systemctl restart fdbrokerd.service
  mark lasting
  check "a shorter watchdog: it is answered" soon goes_on lasting
  check "a close hangs in a lane before the watchdog" hang
  before=$(pid)
  kill -STOP "$before"
  check "watchdog: systemd ends what stands still" soon is_new "$before"
  check "watchdog: it is reaped" is_reaped "$before"
  check "watchdog: the call still hangs" still_hangs
  check "watchdog: its reason is in the journal" bash -c \
    'journalctl --no-pager -u fdbrokerd.service | grep -q "[Ww]atchdog timeout"'
  after_crash "watchdog" "$before"
  check "the call returns" ended_hang
  rm -r /etc/systemd/system/fdbrokerd.service.d
  systemctl daemon-reload
}
[ "$selection" != full ] || crash_checks

# ---- stop and start

before=$(pid)
if [ "$version" -ge 254 ]; then
  systemctl stop fdbrokerd.service 2> /dev/null
  check "stop, with the sockets active: it ends and the store stays" bash -c \
    'systemctl show -P NFileDescriptorStore fdbrokerd.service; [ "$(systemctl show -P NFileDescriptorStore fdbrokerd.service)" -gt 0 ]'
  systemctl start fdbrokerd.service
  check "start: everything is there" everything_is_there
  mark lasting
  check "start: clients go on" soon goes_on lasting
  # After a crash they have seen NOT_CONNECTED.
  [ "$selection" = full ] || check "start: they saw no error, no disconnect and no lost lease" only_ok lasting
else
  stop_all
  check "stop: it ends, the sockets with it" is "$(show ActiveState) $(systemctl is-active fdbrokerd.socket)" "inactive inactive"
  check "stop: clients are told NOT_CONNECTED at once" bash -c "$client get $files/1001/empty 2>&1 | grep NOT_CONNECTED"
  systemctl start fdbrokerd.socket fdbrokerd-admin.socket fdbrokerd.service
  check "start: what living owners can give again is there" soon everywhere recallable ok=20
  check "start: the rest answers OWNER_GONE" soon everywhere orphan OwnerGone=6
  check "start: kept objects are gone" objects_are NotFound
fi
check "stop and start: a new process" is_new "$before"

# ---- the end

stop_hammers lasting
for name in recallable resident keep; do kill_owners $name; done
no_client() { is "$(number connections)" 0; }
check "no client is left" soon no_client
leases() { is "open $(number open_leases), mapped $(number mapped_leases)" "open 0, mapped 0"; }
check "no lease is left" soon leases
fdbroker status | sed 's/^/        /'
echo "        fds of the daemon: $(fds_of_daemon), $fds_at_first at first; held by it: $(number stored_fds);" \
  "in systemd's store: $(show NFileDescriptorStore); memory: $(show MemoryCurrent) bytes; starts: $(show NRestarts) by itself"
# A carrier is two fds; one to spare.
settled() {
  local fds held
  fds=$(fds_of_daemon) held=$(number stored_fds)
  echo "fds $fds, at first $fds_at_first, held $held"
  [ "$fds" -le $((fds_at_first + held + 3)) ]
}
check "the daemon's fds are those of the start and the kept" soon settled
check "no panic in the journal" bash -c '! journalctl --no-pager _COMM=fdbrokerd | grep -i panic'
errors() { journalctl --no-pager -o cat _COMM=fdbrokerd -p err | grep -v 'colour\|fdbrokerd[.]toml'; }
check "no error in the journal, but the one of the configuration" is "$(errors)" ""

stopped_and_left_the_configuration() {
  ! systemctl is-active -q fdbrokerd.service fdbrokerd.socket && [ ! -e /usr/bin/fdbrokerd ] && [ -e /etc/fdbroker/fdbrokerd.toml ]
}
if [ -d "$packages" ]; then
  check "the second package is there, and the administrator's configuration" bash -c \
    'dpkg -s fdbroker | grep -q "^Version: .*-2$" && grep -q "^keep_ttl_ms = 3600000" /etc/fdbroker/fdbrokerd.toml'
  cp /usr/bin/fdbroker /usr/bin/fdbrokerd "$source_tree/target/release/"
  check "dpkg -r" dpkg -r fdbroker
  check "it stopped the service and left the configuration" stopped_and_left_the_configuration
  check "dpkg -P" dpkg -P fdbroker
  check "nothing is left: no file" is "$(files_of_system)" "$files_before"
  check "nothing is left: no unit, no user" bash -c '! systemctl list-units --all --plain "fdbroker*" | grep fdbrokerd && ! grep fdbroker /etc/passwd'
  check "install.sh" by_install_sh
  check "what it installs: systemd-analyze verify: clean" verify
  check "what it installs: it starts" systemctl start fdbrokerd.service
  check "what it installs: it serves" bash -c 'fdbroker status | grep -q "^broker pid"'
fi
check "install.sh --uninstall" "$source_tree/systemd/install.sh" --uninstall --prefix /usr
check "it stopped the service and left the configuration" stopped_and_left_the_configuration
if [ $failed -gt 0 ]; then
  echo "-- the journal's end"
  journalctl --no-pager -o short-monotonic -u fdbrokerd.service | tail -n 60
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
