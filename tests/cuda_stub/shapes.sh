# The C programs of this folder, each first with the driver alone ("direct"), which shows that the program is right, and then
# under the layer. Sourced by run.sh, which has the stand-in in `work` and counts. Must never tell a program of fdbroker.
# shellcheck shell=bash disable=SC2154

unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET XDG_RUNTIME_DIR LD_PRELOAD
export FDBROKER_LOG=error
# In bytes: 256 allocations. A test fills it.
card=16777216

compile() { "$cc" -std=gnu11 -g -O1 -Wall -Wextra -Werror "$@" -lpthread; }
check "looks.c compiles" "$cc" -shared -fPIC -O2 -Wall -Wextra -Werror -o "$work/looks.so" "$here/looks.c"
check "allocator.c compiles" "$cc" -std=gnu11 -shared -fPIC -O1 -Wall -Wextra -Werror -o "$work/allocator.so" "$here/allocator.c"
check "another.c compiles" "$cc" -std=gnu11 -shared -fPIC -O1 -Wall -Wextra -Werror -o "$work/another.so" "$here/another.c"
for name in by_value by_message lifetimes ends entry reopen pressure outages devices malloc copies; do
  check "$name.c compiles" compile "$here/$name.c" -o "$work/$name"
done
check "beside.c compiles, linked to libfdbroker" compile -Ilibclient/capi/include "$here/beside.c" -o "$work/beside" \
  -L"$FDBROKER_BIN_DIR/capi" -lfdbroker "-Wl,-rpath,$FDBROKER_BIN_DIR/capi"
check "gpu.c of the C ABI compiles" compile -Ilibclient/capi/include tests/capi/gpu.c -o "$work/gpu" \
  -L"$FDBROKER_BIN_DIR/capi" -lfdbroker "-Wl,-rpath,$FDBROKER_BIN_DIR/capi" -ldl
for name in entry lifetimes malloc; do
  check "$name.c compiles, linked to libcuda" compile -DLINKED "$here/$name.c" -o "$work/${name}_linked" "$work/libcuda.so.1"
done

# program LABEL COMMAND...: runs a program with device memory of its own, and counts the cases that it prints.
program() {
  local label=$1 status=0 card_dir p f; shift
  card_dir=$(mktemp -d "$memory/card-XXXXXX")
  LD_LIBRARY_PATH=$work FDBROKER_CUDA_STUB_DIR=$card_dir FDBROKER_CUDA_STUB_BYTES=${CARD:-$card} \
    timeout --kill-after=5 120 "$@" > "$work/shape.out" 2> "$work/shape.err" || status=$?
  sed "s/^\(ok  *\|FAIL *\)/&$label: /" "$work/shape.out"
  p=$(grep -c '^ok ' "$work/shape.out") f=$(grep -c '^FAIL' "$work/shape.out")
  [ "$status" = 0 ] && [ "$f" = 0 ] || sed 's/^/      /' "$work/shape.err" | tail -n 40
  count "$status" "$p" "$f" "$label"
  rm -rf "$card_dir"
}

evicted=(number_when_exported_three_times_ends_with_the_third_close number_when_its_handle_is_released_is_good_while_it_is_mapped
  number_when_all_is_released_and_unmapped_keeps_the_memory handle_when_its_value_is_used_again_is_exported_as_what_it_is_now
  mappings_when_unmapped_at_once_all_end fd_when_duplicated_before_the_import_is_the_memory number_when_a_child_closes_it_lives_on
  exports_when_a_row_ends_leave_nothing_behind exports_when_what_comes_next_was_replaced_are_what_is_there_now
  exports_when_threads_go_through_rows_of_their_own_are_right)
for name in by_value by_message lifetimes ends entry reopen; do program direct "$work/$name"; done
program "direct, linked" "$work/entry_linked"
program "direct, linked" "$work/lifetimes_linked" "${evicted[@]}"
# What the stand-in says of several GPUs. It has to be right before a test of the library's can rely on it.
two=(env FDBROKER_CUDA_STUB_DEVICES=2 "$work/devices")
program "direct, two GPUs" "${two[@]}"
program "direct, two GPUs" "${two[@]}" variable_when_read_is_that_of_the_init_that_succeeds
storm=memory_when_more_is_exported_than_the_node_may_hold_is_always_right
lowered=exports_when_the_fd_limit_is_lowered_go_on
stopped=number_when_its_owner_is_stopped_while_evicted_is_eagain
revoked=exports_when_what_comes_next_was_revoked_are_good
restarted=numbers_when_the_broker_is_killed_and_started_anew_live_on
away=job_when_the_broker_is_away_for_ten_seconds_stalls_and_is_right
given_up=numbers_when_the_broker_dies_live_on_until_it_is_given_up
children=children_when_started_while_threads_export_come_to_their_programs
preloaded=calls_when_another_library_is_preloaded_share_memory
program direct "$work/pressure" "$storm" "$children" "$lowered" "$stopped" "$revoked" "$restarted"
program direct "$work/outages" "$away" "$given_up"
program "direct, Python" python3 "$here/program.py"
program "direct, beside the library" env "LD_PRELOAD=$work/looks.so" "$FDBROKER_BIN_DIR/fdbroker" run -- "$work/beside"
program "direct, another library preloaded" env ANOTHER_IS_FIRST=1 "LD_PRELOAD=$work/another.so" "$work/entry_linked" "$preloaded"

program "direct, an allocator preloaded" env "LD_PRELOAD=$work/allocator.so" "$work/by_value"

# Memory of cuMemAlloc, in pieces of some MiB, and CUDA's own IPC.
peers=memory_when_peers_are_enabled_is_reached_until_they_are_disabled
CARD=67108864 program direct "$work/malloc"
CARD=67108864 program "direct, linked" "$work/malloc_linked"
CARD=67108864 program "direct, two GPUs" env FDBROKER_CUDA_STUB_DEVICES=2 "$work/malloc" "$peers"
CARD=67108864 program "direct, two GPUs" env FDBROKER_CUDA_STUB_DEVICES=2 "$work/copies"

# --- the C ABI ---

capi=(env "FDBROKERD=$FDBROKER_BIN_DIR/fdbrokerd" "FDBROKER=$FDBROKER_BIN_DIR/fdbroker")
program "C ABI" "${capi[@]}" "LD_PRELOAD=$work/looks.so" "$work/gpu" cuda
mkdir "$work/no-driver" && : > "$work/no-driver/libcuda.so.1"
program "C ABI, no driver" "${capi[@]}" "LD_LIBRARY_PATH=$work/no-driver" "$work/gpu" cuda absent
program "C ABI, no device" "${capi[@]}" FDBROKER_CUDA_STUB_NO_DEVICE=1 "$work/gpu" cuda absent

# --- under the layer ---

fdbroker=$FDBROKER_BIN_DIR/fdbroker
layer=$FDBROKER_BIN_DIR/libfdbroker_cuda.so
# layered LABEL OPTIONS... -- COMMAND...: the broker sees the stand-in's fds as the driver's; the program finds the driver itself.
layered() {
  local label=$1 options=(); shift
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  program "$label" env EXPECT_LAYER=1 "LD_PRELOAD=$work/looks.so" "$fdbroker" run --cuda "${options[@]}" -- "$@"
}
# A number of the program's broker.
cat > "$work/ledger.sh" <<LEDGER
LD_PRELOAD= "$fdbroker" status --json | sed -nE "s/.*\"\$1\":(\{\"now\":)?([0-9]+).*/\2/p"
LEDGER
export LEDGER="sh $work/ledger.sh"
# The broker's summary of the last program says that fds were taken from the broker and exported again.
recalled() { grep -Eq 'asked for again (once|[1-9])' "$work/shape.err"; }

for name in by_value by_message lifetimes ends entry reopen; do layered layer -- "$work/$name"; done
layered "layer, linked" -- "$work/entry_linked"
GPUS="LD_PRELOAD= '$fdbroker' gpus --json" layered "layer, Python" -- python3 "$here/program.py"
layered "layer, beside the library" -- "$work/beside"
# Each fd is taken from the broker before it is asked for, whatever has become of its handle and its mappings.
EVICT="LD_PRELOAD= '$fdbroker' evict --all > /dev/null" layered "layer, evicted" -- "$work/lifetimes" "${evicted[@]}"
check "layer, evicted: there were recalls" recalled
EVICT="LD_PRELOAD= '$fdbroker' evict --all > /dev/null" layered "layer, linked, evicted" -- "$work/lifetimes_linked" "${evicted[@]}"
# Each fd has to make room for the next.
layered "layer, few fds" --max-fds 24 -- "$work/by_value"
check "layer, few fds: there were recalls" recalled
layered "layer, few fds" --max-fds 24 -- "$work/by_message"
layered "layer, few fds" --max-fds 24 -- "$work/reopen" memory_when_opened_again_and_freed_is_the_owners_at_once \
  consumer_when_stopped_keeps_little_of_what_is_freed fds_when_kept_are_neither_the_programs_nor_a_childs \
  fds_when_kept_while_threads_fetch_are_no_childs
layered "layer, few fds" --max-fds 24 -- "$work/pressure" "$storm" "$children"
check "layer, few fds, threads: there were recalls" recalled
layered layer -- "$work/pressure" "$lowered"
layered layer --max-fds 16 -- env FDBROKER_LAYER_WAIT=1 "$work/pressure" "$stopped"
REVOKE="LD_PRELOAD= '$fdbroker' revoke --yes uid:$(id -u) > /dev/null" layered layer -- "$work/pressure" "$revoked"

# Preloading puts a library before the layer; the program can put one behind it.
behind=(sh -c 'LD_PRELOAD=$LD_PRELOAD:$0 exec "$@"' "$work/another.so")
before=(sh -c 'ANOTHER_IS_FIRST=1 LD_PRELOAD=$0:$LD_PRELOAD exec "$@"' "$work/another.so")
layered "layer, another library behind it" -- "${behind[@]}" "$work/entry_linked" "$preloaded"
layered "layer, another library before it" -- "${before[@]}" "$work/entry_linked" "$preloaded"
behind[3]=$work/allocator.so before[3]=$work/allocator.so
layered "layer, an allocator behind it" -- "${behind[@]}" "$work/by_value"
layered "layer, an allocator before it" -- "${before[@]}" "$work/entry_linked"

# --- memory of cuMemAlloc ---

# mallocs LABEL OPTIONS... -- COMMAND...: as `layered`, with memory of cuMemAlloc under the layer, too.
mallocs() {
  local label=$1 options=(); shift
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  CARD=${CARD:-67108864} program "$label" env EXPECT_LAYER=1 EXPECT_MALLOC=1 "LD_PRELOAD=$work/looks.so" "$fdbroker" run --cuda=malloc "${options[@]}" -- "$@"
}
ipc=memory_when_its_handle_is_opened_twice_is_the_same_memory
unknown=handle_when_the_consumer_cannot_know_it_is_invalid
again=handle_when_the_broker_is_killed_and_started_anew_lives_on
mallocs malloc -- "$work/malloc"
mallocs "malloc, linked" -- "$work/malloc_linked"
mallocs "malloc, two GPUs" -- env FDBROKER_CUDA_STUB_DEVICES=2 "$work/malloc" "$peers"
mallocs "malloc, two GPUs" -- env FDBROKER_CUDA_STUB_DEVICES=2 "$work/copies"
EVICT="LD_PRELOAD= '$fdbroker' evict --all > /dev/null" mallocs "malloc, evicted" -- "$work/malloc" "$ipc"
check "malloc, evicted: there were recalls" recalled
CONSUMER="env -u LD_PRELOAD" mallocs "malloc, consumer without it" -- "$work/malloc" "$unknown"
CONSUMER="env LD_PRELOAD=$work/looks.so $fdbroker run --cuda=malloc --" mallocs "malloc, consumer of another broker" -- "$work/malloc" "$unknown"
LIMIT="LD_PRELOAD= '$fdbroker' limits set client.allocations=1 > /dev/null" mallocs "malloc, caps full" -- "$work/malloc" \
  handle_when_the_caps_are_full_is_an_error_and_the_memory_stays
CONSUMER="env CUDA_VISIBLE_DEVICES=1" mallocs "malloc, a hidden GPU" -- env FDBROKER_CUDA_STUB_DEVICES=2 "$work/malloc" \
  handle_when_its_gpu_is_hidden_from_the_consumer_is_refused
# All else works beside it, in the ways in which programs find the calls.
for name in by_value lifetimes entry; do CARD=$card mallocs malloc -- "$work/$name"; done
CARD=$card mallocs "malloc, linked" -- "$work/entry_linked"
CARD=$card mallocs "malloc, beside the library" -- "$work/beside"
# Where it is of no use it is off, and says so once.
is_off_once() { [ "$(grep -c "^fdbroker-cuda.*memory of cuMemAlloc $1" "$work/shape.err")" = 1 ]; }
off=(attributes_when_asked_are_those_of_all_memory free_when_work_is_under_way_waits)
CARD=67108864 program "malloc, no VMM" env FDBROKER_CUDA_STUB_NO_VMM=1 "LD_PRELOAD=$work/looks.so" \
  "$fdbroker" run --cuda=malloc -- "$work/malloc" "${off[@]}"
check "malloc, no VMM: there is one line on stderr" is_off_once "is the driver's own: the device has no VMM"
CARD=67108864 program "malloc, a limit of MPS" env CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G "LD_PRELOAD=$work/looks.so" \
  "$fdbroker" run --cuda=malloc -- "$work/malloc" "${off[@]}"
check "malloc, a limit of MPS: there is one line on stderr" is_off_once "is the driver's own: CUDA_MPS"
CARD=67108864 program "malloc, no broker" env FDBROKER_CUDA_MALLOC=1 "FDBROKER_SOCKET=$work/none.sock" "LD_PRELOAD=$layer" \
  "$work/malloc" "${off[@]}"
check "malloc, no broker: there is one line on stderr" is_off_once "are the driver's own: .*NOT_CONNECTED"

# --- consumers elsewhere ---

tensor=tensor_when_exported_segment_by_segment_is_the_consumers_memory
buffer=buffer_when_packed_by_its_address_is_the_consumers_memory
refused=number_when_the_consumer_cannot_know_it_is_ebadf
apart=(unshare --pid --fork)
[ "$(id -u)" = 0 ] || apart+=(--user --map-root-user)
if "${apart[@]}" true 2> /dev/null; then
  CONSUMER="${apart[*]}" layered "layer, PID namespaces apart" -- "$work/by_value" "$tensor" "$buffer"
else
  not_run "CUDA layer, PID namespaces apart" "unshare(1) may not make a PID namespace"
fi
CONSUMER="env -u LD_PRELOAD" layered "layer, consumer without it" -- "$work/by_value" "$refused"
CONSUMER="env LD_PRELOAD=$work/looks.so $fdbroker run --cuda --" layered "layer, consumer of another broker" -- "$work/by_value" "$refused"

# --- brokers that come and go ---

# Starts a broker and waits for it; started again, it kills the one before.
cat > "$work/broker.sh" <<BROKER
unset LD_PRELOAD
[ ! -e "$work/broker.pid" ] || kill -9 "\$(cat "$work/broker.pid")"
LD_PRELOAD=$work/looks.so "$FDBROKER_BIN_DIR/fdbrokerd" --private "$work/broker" --ready-fd 1 \
  > "$work/ready" 2> "$work/broker.err" < /dev/null &
echo \$! > "$work/broker.pid"
read -r _ < "$work/ready"
BROKER
mkfifo "$work/ready"
trap 'kill "$(cat "$work/broker.pid")" 2> /dev/null; rm -rf "$work" "$memory"' EXIT
broker=(sh -c 'bash "$0" && LD_PRELOAD=$1 && export LD_PRELOAD && shift && exec "$@"' "$work/broker.sh" "$layer")
program "layer, broker killed" env EXPECT_LAYER=1 "RESTART=bash $work/broker.sh" \
  "FDBROKER_SOCKET=$work/broker/fdbroker/broker.sock" "${broker[@]}" "$work/pressure" "$restarted" "$storm"

CARD=67108864 program "malloc, broker killed" env EXPECT_LAYER=1 EXPECT_MALLOC=1 FDBROKER_CUDA_MALLOC=1 "RESTART=bash $work/broker.sh" \
  "FDBROKER_SOCKET=$work/broker/fdbroker/broker.sock" "${broker[@]}" "$work/malloc" "$again"

cat > "$work/outage.sh" <<OUTAGE
kill -9 "\$(cat "$work/broker.pid")"
rm "$work/broker.pid"
(sleep 10; exec bash "$work/broker.sh") > /dev/null 2>&1 < /dev/null &
OUTAGE
program "layer, broker away" env EXPECT_LAYER=1 "OUTAGE=bash $work/outage.sh" \
  "FDBROKER_SOCKET=$work/broker/fdbroker/broker.sock" "${broker[@]}" "$work/outages" "$away"

# Kills the broker of `fdbroker run` that serves, once it does, and waits for its end.
cat > "$work/kill.sh" <<KILL
until pid=\$(LD_PRELOAD= "$fdbroker" status --json 2> /dev/null | sed -n 's/.*"pid":\([0-9]*\).*/\1/p') && [ "\$pid" ]; do sleep 0.02; done
kill -9 "\$pid"
while kill -0 "\$pid" 2> /dev/null; do sleep 0.02; done
KILL
KILL="bash $work/kill.sh" layered "layer, broker given up" -- env FDBROKER_LAYER_WAIT=5 "$work/outages" "$given_up"

# Without a broker the fds are the driver's own, and each process says so once.
no_broker=(env "FDBROKER_SOCKET=$work/none.sock" "LD_PRELOAD=$layer")
for name in by_value by_message lifetimes ends entry; do program "layer, no broker" "${no_broker[@]}" "$work/$name"; done
program "layer, no broker, linked" "${no_broker[@]}" "$work/entry_linked"
is_said_once() { [ "$(grep -c '^fdbroker-cuda.*NOT_CONNECTED' "$work/shape.err")" = 1 ]; }
check "without a broker there is one line on stderr" is_said_once

# Nor does the layer talk to another user's server.
if [ "$(id -u)" = 0 ]; then
  python3 "$here/../common/impostor.py" "$work/foreign.sock" "$work/heard" &
  impostor=$!
  until grep -q " 00010000 0005 01 [0-9]* $work/foreign.sock\$" /proc/net/unix; do sleep 0.05; done
  program "layer, another user's server" "${no_broker[@]}" "FDBROKER_SOCKET=$work/foreign.sock" "$work/by_message"
  named() { sed -n 's/^fdbroker-cuda\[\([0-9]*\)\].*served by uid 61003: NOT_PERMITTED.*/\1/p' "$work/shape.err" | sort; }
  is_named_once() { [ -n "$(named)" ] && [ -z "$(named | uniq -d)" ]; }
  check "another user's server is named by one line of each process on stderr" is_named_once
  hears_nothing() { [ -s "$work/heard" ] && ! grep -qv '^0$' "$work/heard"; }
  check "and hears nothing" hears_nothing
  kill "$impostor"
else
  not_run "CUDA layer, another user's server" "needs root, for another user"
fi

# A program that nothing can be preloaded into.
echo 'int main(void) { return 0; }' > "$work/static.c"
check "a static program compiles" "$cc" -static -o "$work/static" "$work/static.c"
static_is_refused() { ! "$fdbroker" run --cuda -- "$work/static" 2> "$work/err" && grep "linked statically" "$work/err"; }
check "run --cuda says that it cannot do anything for a static program" static_is_refused
