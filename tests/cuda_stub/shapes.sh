# The C programs of this folder, each first with the driver alone ("direct"), which shows that the program is right, and then
# under the layer. Sourced by run.sh, which has the stand-in in `work` and counts. Must never tell a program of fdbroker.
# shellcheck shell=bash disable=SC2154

unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET XDG_RUNTIME_DIR LD_PRELOAD
export FDBROKER_LOG=error
# In bytes: 256 allocations. A test fills it.
card=16777216

compile() { "$cc" -std=gnu11 -g -O1 -Wall -Wextra -Werror "$@" -lpthread; }
check "looks.c compiles" "$cc" -shared -fPIC -O2 -Wall -Wextra -Werror -o "$work/looks.so" "$here/looks.c"
check "another.c compiles" "$cc" -std=gnu11 -shared -fPIC -O1 -Wall -Wextra -Werror -o "$work/another.so" "$here/another.c"
for name in by_value by_message lifetimes entry pressure; do
  check "$name.c compiles" compile "$here/$name.c" -o "$work/$name"
done
check "entry.c compiles, linked to libcuda" compile -DLINKED "$here/entry.c" -o "$work/entry_linked" "$work/libcuda.so.1"

# program LABEL COMMAND...: runs a program with device memory of its own, and counts the cases that it prints.
program() {
  local label=$1 status=0 card_dir p f; shift
  card_dir=$(mktemp -d "$memory/card-XXXXXX")
  LD_LIBRARY_PATH=$work FDBROKER_CUDA_STUB_DIR=$card_dir FDBROKER_CUDA_STUB_BYTES=$card \
    timeout --kill-after=5 120 "$@" > "$work/shape.out" 2> "$work/shape.err" || status=$?
  sed "s/^\(ok  *\|FAIL *\)/&$label: /" "$work/shape.out"
  p=$(grep -c '^ok ' "$work/shape.out") f=$(grep -c '^FAIL' "$work/shape.out")
  [ "$status" = 0 ] && [ "$f" = 0 ] || sed 's/^/      /' "$work/shape.err" | tail -n 40
  count "$status" "$p" "$f" "$label"
  rm -rf "$card_dir"
}

for name in by_value by_message lifetimes entry; do program direct "$work/$name"; done
program "direct, linked" "$work/entry_linked"
storm=memory_when_more_is_exported_than_the_node_may_hold_is_always_right
lowered=exports_when_the_fd_limit_is_lowered_go_on
stopped=number_when_its_owner_is_stopped_while_evicted_is_eagain
restarted=numbers_when_the_broker_is_killed_and_started_anew_live_on
preloaded=calls_when_another_library_is_preloaded_share_memory
program direct "$work/pressure" "$storm" "$lowered" "$stopped" "$restarted"
program "direct, another library preloaded" env ANOTHER_IS_FIRST=1 "LD_PRELOAD=$work/another.so" "$work/entry_linked" "$preloaded"
