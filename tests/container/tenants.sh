# Tenants: pods of one uid, told apart by cgroups that look like the kubelet's. Sourced by run.sh, whose functions it uses. Must never
# touch a cgroup that it has not made.
# shellcheck shell=bash

cgroups=() mounts=()
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then mounts=(/sys/fs/cgroup); else
  for mount in /sys/fs/cgroup/*/; do [ ! -f "${mount}cgroup.procs" ] || mounts+=("${mount%/}"); done
fi
# make_cgroup PATH: makes it in each hierarchy.
make_cgroup() {
  local mount path part parts file
  IFS=/ read -ra parts <<< "$1"
  for mount in "${mounts[@]}"; do
    path=$mount
    for part in "${parts[@]}"; do
      path=$path/$part
      [ ! -d "$path" ] || continue
      mkdir "$path" || return 1
      cgroups=("$path" "${cgroups[@]}")
      # cgroup v1 lets nobody in before.
      for file in cpuset.cpus cpuset.mems; do
        [ ! -f "$mount/tasks" ] || [ ! -f "$path/$file" ] || cat "${path%/*}/$file" > "$path/$file"
      done
    done
  done
}
remove_cgroups() { local path; for path in "${cgroups[@]}"; do rmdir "$path" 2> /dev/null; done; }
# move PATH PID: into it, in each hierarchy.
move() { local mount; for mount in "${mounts[@]}"; do echo "$2" > "$mount/$1/cgroup.procs" || return 1; done; }
# enter PATH UID COMMAND...: becomes the command in it, as that user.
enter() {
  local path=$1 uid=$2; shift 2
  move "$path" "$BASHPID" && as "$uid" "$@"
}
# in_cgroup PATH UID COMMAND...: the same, and waits for its end.
in_cgroup() { (enter "$@"); }
new_uid() { cat /proc/sys/kernel/random/uuid; }
slice() { echo "${1//-/_}"; }

# client LISTENER CGROUP UID COMMAND...: becomes a client there.
client() {
  local socket=$work/pods/$1/broker.sock path=$2 uid=$3; shift 3
  enter "$path" "$uid" env FDBROKER_SOCKET="$socket" FDBROKER_ADMIN_SOCKET="${socket%/*}/view.sock" "$@"
}
by_pods() { (client "$@"); }
# pods_configuration LISTENER...: in this order; the one of tenants tells pods apart.
pods_configuration() {
  local listener
  {
    printf 'admin_socket = "%s"\nmonitor_group = "%s"\n' "$work/pods/admin/admin.sock" "$monitors"
    for listener; do
      printf '[[listener]]\npath = "%s"\n' "$work/pods/$listener/broker.sock"
      [ "$listener" != tenants ] || echo 'isolate = "pod"'
    done
  } > "$work/pods/config.toml"
}
start_pods_broker() { # start_pods_broker NAME OPTIONS...
  local name=$1; shift
  as "$service" "$bin/fdbrokerd" --config "$work/pods/config.toml" --until-eof 0 --ready-fd 1 "$@" > "$work/$name/ready" \
    2> "$work/$name/log" < "$work/never" {hold}>&- &
  pods_daemon=$!
  children+=("$pods_daemon")
  eventually is_ready "$name"
}

tenants() {
  local a b c d outside named pod=$work/pods producer
  a=$(new_uid) b=$(new_uid) c=$(new_uid)
  d=kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod$(slice "$a").slice
  a=$d/cri-containerd-1.scope d=$d/cri-containerd-2.scope
  b=kubepods.slice/kubepods-pod$(slice "$b").slice/crio-1.scope
  # The driver cgroupfs on the same node.
  c=kubepods/besteffort/pod$c/1
  outside=user.slice/fdb-test.slice
  named=$outside/kubepods.slice/kubepods-pod$(slice "$(new_uid)").slice
  local path
  for path in "$a" "$b" "$c" "$d" "$outside" "$named"; do
    make_cgroup "$path" || { remove_cgroups; not_run "container: tenants by pods" "cgroups cannot be made in ${mounts[*]}"; return; }
  done
  # A user that has been given a slice makes cgroups in it as it likes.
  for path in "${mounts[@]}"; do chown -R "$alice" "$path/$outside"; done
  place pods "$service"
  mkdir -p "$pod/tenants" "$pod/all"; chmod 755 "$pod/tenants" "$pod/all"; chown "$service" "$pod/tenants" "$pod/all"
  pods_configuration all tenants
  check "a daemon serves a listener that tells pods apart, and one that does not" start_pods_broker pods

  started producer client tenants "$a" "$alice" "$bin/producer" > "$work/pod-handle"
  check "a process in a pod deposits" eventually has_handle "$work/pod-handle"
  local handle=$work/pod-handle
  acquires() { shows ' 0 of them wrong' by_pods "$@" "$bin/consumer" < "$handle"; }
  refused() { local text=$1; shift; refuses "$text" by_pods "$@" "$bin/consumer" < "$handle"; }
  check "another process in its container, as by kubectl exec, acquires" acquires tenants "$a" "$alice"
  check "so does another container of the pod" acquires tenants "$d" "$alice"
  check "the same uid in another pod is refused" refused NotPermitted tenants "$b" "$alice"
  check "so it is in one whose cgroups are cgroupfs's" refused NotPermitted tenants "$c" "$alice"
  check "another uid in the same pod is refused" refused NotPermitted tenants "$a" "$mallory"
  check "the same uid outside pods is not served at this listener, by name" refused 'serves pods alone' tenants "$outside" "$alice"
  check "nor in a slice of its own that is named like a pod" refused 'serves pods alone' tenants "$named" "$alice"
  make_cgroup "$b/kubepods.slice/kubepods-burstable.slice/${a#*/*/}"
  check "in a pod that names a cgroup like the other pod's it is its own pod's" \
    refused NotPermitted tenants "$b/kubepods.slice/kubepods-burstable.slice/${a#*/*/}" "$alice"
  local owned=${mounts[-1]}/kubepods.slice/kubepods-burstable.slice
  chown "$alice" "$owned"
  check "where a user owns a directory above the pods nobody is served" refused 'serves pods alone' tenants "$a" "$alice"
  chown 0 "$owned"

  check "uid 0 in a pod puts an object" by_pods tenants "$a" 0 "$bin/fdbroker" put --pin w "$work/a"
  check "uid 0 in another pod does not get it" refuses '' by_pods tenants "$b" 0 "$bin/fdbroker" get w
  check "nor does it see it" shows_all '' by_pods tenants "$b" 0 "$bin/fdbroker" ls --no-headings
  check "it puts its own by the same name" by_pods tenants "$b" 0 "$bin/fdbroker" put --pin w "$work/b"
  check "and removes that" by_pods tenants "$b" 0 "$bin/fdbroker" rm w
  check "the other pod's is still there" shows_all a by_pods tenants "$a" 0 "$bin/fdbroker" get w
  check "the same uid in another container of the pod has it" shows_all a by_pods tenants "$d" 0 "$bin/fdbroker" get w
  check "the view in a pod has the pod's own" shows 'gone' by_pods tenants "$a" 0 "$bin/fdbroker" ls

  local shared=$work/shared-handle
  started producer client all "$a" "$alice" "$bin/producer" > "$shared"
  check "by the listener without isolation pods share: a deposit" eventually has_handle "$shared"
  handle=$shared
  check "and the same uid in another pod acquires it" acquires all "$b" "$alice"
  check "by the listener with isolation nobody does, the pod itself included" refused NotPermitted tenants "$a" "$alice"
  handle=$work/pod-handle

  check "outside pods the group of monitors sees all" shows_two '' in_cgroup "$outside" 0 \
    setpriv --reuid "$mallory" --regid "$mallory" --groups "$monitors" env FDBROKER_ADMIN_SOCKET="$pod/all/view.sock" "$bin/fdbroker" ls --no-headings
  check "in a pod it sees what is its own" shows_all '' in_cgroup "$b" 0 \
    setpriv --reuid "$mallory" --regid "$mallory" --groups "$monitors" env FDBROKER_ADMIN_SOCKET="$pod/all/view.sock" "$bin/fdbroker" ls --no-headings

  check "a process that moves between pods while it connects is of one of them, or refused by name" moves_while_it_connects "$a" "$b"

  mkdir -p "$work/pods-next"
  check "a successor takes over" start_pods_broker pods-next --takeover
  check "after it the pod acquires" acquires tenants "$a" "$alice"
  check "and the same uid in another pod is refused" refused NotPermitted tenants "$b" "$alice"
  check "and has nothing of the pinned object" refuses '' by_pods tenants "$b" 0 "$bin/fdbroker" get w
  kill -9 "$pods_daemon"
  mkdir -p "$work/pods-last"
  check "after a crash the broker starts again" start_pods_broker pods-last
  check "the owner comes back, and its pod acquires" eventually acquires tenants "$a" "$alice"
  check "the same uid in another pod is refused then, too" refused NotPermitted tenants "$b" "$alice"

  pods_configuration tenants all
  kill -9 "$pods_daemon"
  mkdir -p "$work/pods-swapped"
  check "after another crash the broker starts with its listeners in the other order" start_pods_broker pods-swapped
  check "the owner comes back to its own listener, and its pod acquires" eventually acquires tenants "$a" "$alice"
  check "the same uid at the listener that was first is refused" refused NotPermitted all "$a" "$alice"
  handle=$shared
  check "what was deposited there is still its clients'" eventually acquires all "$b" "$alice"
  check "and none of the pod's" refused NotPermitted tenants "$a" "$alice"
  handle=$work/pod-handle
  check "outside pods the group of monitors sees all here, where the first listener isolates" shows_two '' in_cgroup "$outside" 0 \
    setpriv --reuid "$mallory" --regid "$mallory" --groups "$monitors" env FDBROKER_ADMIN_SOCKET="$pod/tenants/view.sock" "$bin/fdbroker" ls --no-headings

  check "a pod pins an object and ends" by_pods tenants "$c" "$alice" "$bin/fdbroker" put --pin last "$work/a"
  for path in "${mounts[@]}"; do rmdir "$path/$c" "$path/${c%/*}"; done
  check "the same uid in another pod has nothing of it" refuses '' by_pods tenants "$b" "$alice" "$bin/fdbroker" get last
  local id; id=$(fdbroker pods ls --no-headings | awk '/ gone / && !/ ended / { print $1 }')
  check "an administrator sees it" test -n "$id"
  check "and ends it" fdbroker pods revoke -y "$id"
  check "then nothing of the pod is left" has_no_gone
  remove_cgroups
}
# What has ended with the broker that was killed stays listed for the grace time.
has_no_gone() { ! fdbroker pods ls | grep -v ' ended ' | grep gone; }
shows_two() { local out; shift; out=$("$@" 2>&1) || { echo "$out"; return 1; }; echo "$out"; [ "$(wc -l <<< "$out")" -ge 2 ]; }
# The objects `moving` of both pods say which pod a connection was taken to be of.
moves_while_it_connects() {
  local a=$1 b=$2 mover shell out
  by_pods tenants "$a" "$alice" "$bin/fdbroker" put --pin moving "$work/a" && by_pods tenants "$b" "$alice" "$bin/fdbroker" put --pin moving "$work/b" || return 1
  (move "$a" "$BASHPID"
    # shellcheck disable=SC2016
    as "$alice" env FDBROKER_SOCKET="$work/pods/tenants/broker.sock" bash -c 'for _ in {1..40}; do "$1" get moving 2>&1; echo; done' get "$bin/fdbroker") > "$work/moved" &
  shell=$!
  (while :; do for path in "$b" "$a"; do
    for pid in "$shell" $(cat "/proc/$shell/task/$shell/children"); do move "$path" "$pid"; done
  done; done) 2> /dev/null &
  mover=$!
  children+=("$mover")
  wait "$shell"
  kill "$mover"; wait "$mover" 2> /dev/null
  sort "$work/moved" | uniq -c
  # Its second socket is another pod's, or no pod's.
  ! grep -vE '^(a|b|.*serves pods alone.*|.*the broker has ended the connection.*|)$' "$work/moved"
}
