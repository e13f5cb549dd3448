#!/bin/bash
# Tests `fdbroker top` in a real terminal, 80x24 in tmux: the screen, the keys, and that the terminal is as before however
# top ends. Must never touch another tmux server, nor judge by time.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

case ${1-} in
  '') ;;
  -h | --help)
    echo "usage: tests/top/run.sh      (no options; status 77: no tmux)"; exit 0 ;;
  *) echo "tests/top/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac
for tool in tmux pgrep; do
  command -v "$tool" > /dev/null || { echo "$tool is not installed; run: sudo tests/install.sh"; exit 77; }
done

programs=$(tests/programs.py) || exit 1
fdbroker=$programs/fdbroker
top_panic=$programs/examples/top_panic
work=$(mktemp -d)
unset TMUX FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET RUST_BACKTRACE
# In the C locale of a bare machine tmux would show underscores for characters that are not ASCII.
export LC_ALL=C.UTF-8
# A tmux server of its own, with no configuration: its socket is in the work directory.
# It must not keep the job alive, so it does not get fd 7.
tmux() { command tmux -S "$work/tmux" -f /dev/null "$@" 7>&-; }
children=()
clean() {
  exec 7>&-
  tmux kill-server 2> /dev/null
  [ "${#children[@]}" = 0 ] || kill "${children[@]}" 2> /dev/null
  wait
  rm -rf "$work"
}
trap clean EXIT

# Longest wait for anything, in tenths of a second.
limit=300
passed=0 failed=0
screen() { tmux capture-pane -p -t top 2> /dev/null; }
ok() { passed=$((passed + 1)); echo "ok      $1"; }
bad() {
  failed=$((failed + 1)); echo "FAILED  $1"; screen | sed 's/^/        | /'
  tmux has-session -t top 2> /dev/null || { echo "the terminal is gone"; echo "$passed passed, $failed failed"; exit 1; }
}
# until_true COMMAND...: waits until the command succeeds.
until_true() {
  local n
  for ((n = 0; n < limit; n++)); do "$@" && return; sleep 0.1; done
  return 1
}
on_screen() { screen | grep -qE -- "$1"; }
not_on_screen() { ! on_screen "$1"; }
check() { local name=$1; shift; if until_true "$@"; then ok "$name"; else bad "$name"; fi; }
press() { tmux send-keys -t top "$@"; }

# A broker, and a demo that keeps its buffers open. It ends when its stdin does: fd 7.
cat > "$work/job" << 'JOB'
echo "$FDBROKER_SOCKET" > "$1/clients-socket"
echo "$FDBROKER_ADMIN_SOCKET" > "$1/socket.new"
"$2" demo --ranks 3 --buffers 10 --hold 3600 > /dev/null 2>&1 &
demo=$!
mv "$1/socket.new" "$1/socket"
read -r _
kill "$demo" 2> /dev/null
wait "$demo"
JOB
mkfifo "$work/life"
"$fdbroker" run -- bash "$work/job" "$work" "$fdbroker" < "$work/life" 2> "$work/run.log" &
job=$!
exec 7> "$work/life"
until_true test -e "$work/socket" || { cat "$work/run.log"; echo "0 passed, 1 failed"; exit 1; }

# A shell in the terminal, interactive because of Ctrl-Z. It prints the terminal's modes, and each command's exit status. It
# gets its arguments one by one: the user's own shell would run a single string, and be the terminal's process.
cat > "$work/shell" << 'SHELL'
export FDBROKER_ADMIN_SOCKET=$(cat "$WORK/socket")
NODE=$WORK/node/fdbroker-admin/admin.sock
stty -a > "$WORK/modes.before"
PROMPT_COMMAND='echo "ended with $?"; stty -a > "$WORK/modes.after"'
PS1='ready> '
SHELL
tmux new-session -d -s top -x 80 -y 24 -e F="$fdbroker" -e PANIC="$top_panic" -e WORK="$work" \
  bash --noprofile --rcfile "$work/shell" -i ||
  { echo "tmux does not start"; echo "0 passed, 1 failed"; exit 1; }
until_true on_screen 'ready>'
alternate() { [ "$(tmux display-message -p -t top '#{alternate_on}')" = "$1" ]; }
cursor_shown() { [ "$(tmux display-message -p -t top '#{cursor_flag}')" = 1 ]; }
same_modes() { [ -e "$work/modes.after" ] && cmp -s "$work/modes.before" "$work/modes.after"; }
# restored NAME STATUS: top has ended with this status, and the terminal is as before.
restored() {
  check "$1: the shell is back with status $2" on_screen "ended with $2"
  check "$1: not on the alternate screen" alternate 0
  check "$1: the cursor is shown" cursor_shown
  check "$1: the terminal's modes are as before" same_modes
}
# start ARGUMENTS: starts top on an empty screen.
start() {
  rm -f "$work/modes.after"
  press C-l; press 'clear; "$F" top '"$*" Enter
  until_true on_screen 'q quit  h help'
}
# The command as the administrator of the job's broker, and as its client. They must not keep the job alive either.
admin=(env FDBROKER_ADMIN_SOCKET="$(cat "$work/socket")" "$fdbroker")
client=(env FDBROKER_SOCKET="$(cat "$work/clients-socket")" "$fdbroker")
pane_pid() { tmux display-message -p -t top '#{pane_pid}'; }
top_pid() { pgrep -P "$(pane_pid)" -x fdbroker; }

start --interval 0.2
check "the header names the broker" on_screen '^fdbroker top: broker [0-9]+, up .*, 3 connections'
check "it is on the alternate screen" alternate 1
check "caps are bars" on_screen '^fds +\[[#+-]+ *\] +[0-9+]+ of [0-9,]+ +<?[0-9]+%  peak'
check "rates" on_screen '^per s: .*grants'
check "the demo's ranks are listed" on_screen '^ *[0-9]+ demo-rank-2 '
check "the oldest leases" on_screen '^OLDEST LEASES, open ones first: [0-9]+ open of 60'
check "events" on_screen '^EVENTS'
# Takes the screen anew for each look: one look may fall into the middle of a frame.
whole_frame() {
  screen > "$work/frame"
  [ "$(wc -l < "$work/frame")" = 24 ] && [ "$(sed -n 24p "$work/frame" | cut -c1-6)" = "q quit" ]
}
check "24 lines; the last one shows the keys" whole_frame

press h
check "h: help" on_screen 'pause and go on'
press x
check "any key: help ends" not_on_screen 'pause and go on'
press p
check "p: paused" on_screen '^PAUSED'
press p
check "p again: goes on" not_on_screen '^PAUSED'
check "clients by fds first" on_screen 'by FDS descending'
press s
check "s: by the next column" on_screen 'by SILENT descending'
press r
check "r: the other way round" on_screen 'by SILENT ascending'
press +
check "+: a longer interval" on_screen 'every 0.5 s'
press -
check "-: a shorter one" on_screen 'every 0.2 s'
press /; press -l nobody
check "/: the filter counts while it is typed" on_screen 'CLIENTS 0 of 3, .*filter: nobody'
press Enter
check "Enter: the filter stays" on_screen '^q quit'
check "and counts" on_screen 'CLIENTS 0 of 3'
press Escape
check "Esc: no filter" on_screen 'CLIENTS 3, by'
press Down
check "arrow down: scrolls" on_screen 'from the 2\.'
press Up
check "arrow up: back" not_on_screen 'from the 2\.'
press End; press PPage
check "PgUp after End: at the first" not_on_screen 'from the'
tmux resize-window -t top -x 120 -y 40
check "a larger terminal: all caps and columns" on_screen '^pinned_bytes'
tmux resize-window -t top -x 30 -y 6
check "a tiny one" on_screen '^CLIENTS 3'
tmux resize-window -t top -x 80 -y 24
check "as before again" on_screen '^q quit  h help .* interval'
# A larger terminal has room for many events.
tmux resize-window -t top -x 120 -y 150
"${client[@]}" demo --ranks 2 --buffers 3 --hold 3600 > /dev/null 2>&1 7>&- &
children+=($!)
time='^[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z'
check "an event: a client has come" on_screen "$time  connected  pid [0-9]+ demo-rank-1"
check "an event: a deposit, with pid, name, allocation and size" on_screen "$time  deposit    pid [0-9]+ demo-rank-[01]  [0-9]+.* KiB\$"
check "events: grants" on_screen "$time  grant      pid [0-9]+ demo-rank-[01]  .* KiB\$"
until_true pgrep -P "$!" > "$work/ranks"
rank=$(head -n 1 "$work/ranks")
kill -KILL "$rank"
check "an event: the killed client is gone" on_screen "$time  gone       pid $rank demo-rank-"
check "an event: its allocations have ended, with the reason" on_screen "$time  end        pid $rank demo-rank-.*OWNER_GONE"
"${admin[@]}" evict --all > /dev/null 7>&-
check "an event: an eviction" on_screen "$time  evict      pid [0-9]+ demo-rank-[0-9]  .* KiB"
# The demo may have ended, since one of its ranks has.
kill "${children[@]}" 2> /dev/null
wait "${children[@]}"
children=()
tmux resize-window -t top -x 80 -y 24
check "its clients are gone" on_screen 'CLIENTS 3, by'
press q
restored "q" 0

# As many watchers as the broker takes (its MAX_ADMIN_WATCHES).
watchers=8
for ((n = 0; n < watchers; n++)); do
  "${admin[@]}" watch > /dev/null 2>&1 7>&- &
  children+=($!)
done
# A `watch` has a second thread once the broker sends it events.
all_watch() {
  local pid
  for pid in "${children[@]}"; do [ "$(ls "/proc/$pid/task" | wc -l)" = 2 ] || return; done
}
check "as many others watch as may" all_watch
start
check "no watcher more: one line says so" on_screen "$time  no events: no room for another watcher; end a watch or a top"
check "and the rest of the frame is there" on_screen 'CLIENTS 3, by'
kill "${children[@]}"
wait "${children[@]}"
children=()
check "they are gone: it watches" on_screen "$time  watching broker [0-9]+; "
"${admin[@]}" drain --wait 0 > /dev/null 2>&1 7>&-
"${admin[@]}" drain --undo > /dev/null 7>&-
check "and has events" on_screen "$time  undrain"
press q
restored "q after that" 0

start
press C-c
restored "Ctrl-C" 0
for pair in TERM:143 INT:130 HUP:129; do
  start
  kill "-${pair%:*}" "$(top_pid)"
  restored "SIG${pair%:*}" "${pair#*:}"
done

start
press C-z
check "Ctrl-Z: the shell is back" on_screen 'ended with 148'
check "Ctrl-Z: not on the alternate screen" alternate 0
check "Ctrl-Z: the terminal's modes are as before" same_modes
check "Ctrl-Z: the cursor is shown" cursor_shown
press 'fg' Enter
check "fg: top is back" on_screen '^fdbroker top: broker'
check "fg: on the alternate screen" alternate 1
press q
restored "q after fg" 0
for pair in TSTP:148 STOP:147; do
  start
  kill "-${pair%:*}" "$(top_pid)"
  check "SIG${pair%:*}: the shell is back" on_screen "ended with ${pair#*:}"
  # At a SIGSTOP no program can give the terminal back.
  if [ "$pair" = TSTP:148 ]; then
    check "SIGTSTP: not on the alternate screen" alternate 0
    check "SIGTSTP: the cursor is shown" cursor_shown
    check "SIGTSTP: the terminal's modes are as before" same_modes
  fi
  press 'clear; fg' Enter
  check "fg: a whole frame again" on_screen '^q quit  h help'
  check "fg: on the alternate screen" alternate 1
  press h
  check "fg: keys are read" on_screen 'pause and go on'
  press x; press q
  restored "q after SIG${pair%:*} and fg" 0
done

# A panic of a program with top's code for taking the terminal and giving it back.
for place in drawing between thread; do
  status=101
  [ "$place" = thread ] && status=1
  rm -f "$work/modes.after"
  press C-l; press 'clear; "$PANIC" '"$place" Enter
  until_true on_screen 'drawn by top_panic'
  check "panic, $place: before it, on the alternate screen" alternate 1
  press x
  restored "panic, $place" "$status"
  check "panic, $place: its message is on the screen" on_screen 'a panic on purpose'
  check "panic, $place: and nothing of the frame" not_on_screen 'drawn by top_panic'
done

# A terminal that goes away while top runs.
tmux new-session -d -s gone -x 80 -y 24 -e F="$fdbroker" -e WORK="$work" \
  bash --noprofile --rcfile "$work/shell" -i
tmux send-keys -t gone 'echo $$ > "$WORK/gone"; exec "$F" top' Enter
until_true eval "tmux capture-pane -p -t gone | grep -q 'q quit  h help'"
gone=$(cat "$work/gone")
ended() { ! kill -0 "$1" 2> /dev/null; }
check "with its terminal there, it runs" test -d "/proc/$gone"
tmux kill-session -t gone
check "its terminal goes away: it ends" ended "$gone"

start
exec 7>&-
wait "$job"
check "the broker ends: the header says so" on_screen '^fdbroker top: NO BROKER'
check "and an event says so" on_screen "$time  no events: the broker has ended"
check "the last clients stay on the screen" on_screen 'CLIENTS [0-3], by'
press q
restored "q without a broker" 0
press 'clear; "$F" top' Enter
check "no broker at the start: status 3" on_screen 'ended with 3'

# A broker that is taken over, killed and started again.
# broker ARGUMENTS: starts one in its place; its pid is then in $broker.
broker() {
  "$fdbroker" broker --private "$work/node" --ready-fd 1 "$@" > "$work/node.ready" 2>> "$work/node.log" &
  broker=$!; children+=("$broker")
}
broker
until_true grep -q READY "$work/node.ready"
rm -f "$work/modes.after"
press C-l; press 'clear; FDBROKER_ADMIN_SOCKET=$NODE "$F" top --interval 0.2' Enter
check "a broker" on_screen "^fdbroker top: broker $broker, "
broker --takeover
check "it is taken over: the header names the other" on_screen "^fdbroker top: broker $broker, "
check "and an event says so" on_screen "$time  watching broker $broker, which continues the ledger"
kill -KILL "$broker"
wait "$broker" 2> /dev/null
check "it is killed: the header says so" on_screen '^fdbroker top: NO BROKER'
broker
check "it is started again: the header names it" on_screen "^fdbroker top: broker $broker, "
check "and an event says that it is a new one" on_screen "$time  watching broker $broker, a new one"
FDBROKER_ADMIN_SOCKET=$work/node/fdbroker-admin/admin.sock "$fdbroker" drain > /dev/null
check "and has events" on_screen "$time  drain"
press q
restored "q after three brokers" 0

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
