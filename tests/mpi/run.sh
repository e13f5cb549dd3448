#!/bin/bash
# Runs the MPI tests under one of the distribution's MPIs: rank.c with every byte checked, the example
# mpi_alltoall.c, and rank.py under Open MPI. Must never use a network, nor pass when the world is smaller than asked for.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
root=$(cd "$here/../.." && pwd)

say() { echo "tests/mpi/run.sh: $*" >&2; }
usage_error() { say "$1 (--help explains)"; exit 2; }

help() {
  cat << 'HELP'
usage: tests/mpi/run.sh openmpi|mpich|srun RANKS [--rounds N] [--buffers N]

Installs the C library into a temporary directory (systemd/install.sh), compiles rank.c and the example mpi_alltoall.c
with that MPI's own compiler, and runs them on this machine: `mpirun -n RANKS fdbroker run --join -- ./rank`. With srun:
Open MPI's, started by the Slurm that the caller is in (tests/mpi/slurm.sh makes one).

  RANKS          2 or more
  --rounds N     rounds of sharing, checking, freeing and allocating anew (default 20)
  --buffers N    buffers of each rank (default 16)

Debian's packages: openmpi-bin libopenmpi-dev mpich libmpich-dev python3-mpi4py pkg-config; tests/install.sh installs
them. Ends with the summary of rank.c and the line `N passed, N failed`. Exit status: 0 all passed, 1 not, 2 usage,
77 when that MPI is not installed.
HELP
}

# rank.c has the same two numbers.
size_unit=4000 size_steps=13 life_rounds=3
# A run takes a few seconds; this ends one that hangs.
limit_s=120

launcher='' ranks='' rounds=20 buffers=16
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) help; exit 0 ;;
    --rounds | --buffers)
      [[ ${2-} =~ ^[1-9][0-9]*$ ]] || usage_error "$1 needs a number"
      declare "${1#--}=$2"; shift 2 ;;
    openmpi | mpich | srun) launcher=$1; shift ;;
    [0-9]*) ranks=$1; shift ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
done
[ -n "$launcher" ] || usage_error "which launcher: openmpi, mpich or srun"
case $launcher in srun) mpi=openmpi start=srun ;; *) mpi=$launcher start=mpirun.$launcher ;; esac
[[ $ranks =~ ^[1-9][0-9]*$ ]] && [ "$ranks" -ge 2 ] || usage_error "how many ranks: 2 or more"
[ "$buffers" -ge "$life_rounds" ] || usage_error "--buffers must be $life_rounds or more"

for tool in "mpicc.$mpi" "$start" pkg-config; do
  command -v "$tool" > /dev/null && continue
  echo "$tool is not installed; run: sudo tests/install.sh"
  exit 77
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# ---- build against an installation, as an application would

programs=$("$root/tests/programs.py") || exit 1
if ! "$root/systemd/install.sh" --from "$programs" --destdir "$work/stage" --prefix /usr > "$work/log" 2>&1; then
  tail -n 30 "$work/log" >&2; say "the installation failed"; exit 1
fi
export PKG_CONFIG_SYSROOT_DIR=$work/stage PKG_CONFIG_PATH=$work/stage/usr/lib/pkgconfig
export LD_LIBRARY_PATH=$work/stage/usr/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH=$work/stage/usr/bin:$PATH
# Only the broker of these tests counts, not one of the caller.
unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET

# compile SOURCE: into $work, by this MPI's compiler.
compile() {
  local name=${1##*/}
  # The flags are words.
  # shellcheck disable=SC2046
  "mpicc.$mpi" -std=c99 -D_POSIX_C_SOURCE=200809L -O2 -Wall -Wextra -Werror "$1" -o "$work/${name%.c}" \
    $(pkg-config --cflags --libs fdbroker)
}
if ! compile "$here/rank.c" || ! compile "$root/libclient/capi/examples/mpi_alltoall.c"; then
  say "mpicc.$mpi failed"; exit 1
fi

# ---- run

# More ranks than cores: a rank that waits must let others run. Shared memory and loopback only.
launch() {
  case $launcher in
    srun)
      OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_mpi_yield_when_idle=1 \
        timeout -k 5 "$limit_s" srun --overcommit --mpi=pmix -n "$ranks" "$@" ;;
    openmpi)
      local as_root=()
      [ "$(id -u)" != 0 ] || as_root=(--allow-run-as-root)
      timeout -k 5 "$limit_s" mpirun.openmpi ${as_root[@]+"${as_root[@]}"} --oversubscribe -n "$ranks" \
        --mca btl self,vader --mca btl_vader_single_copy_mechanism none --mca mpi_yield_when_idle 1 \
        --mca oob_tcp_if_include lo --mca plm isolated "$@" ;;
    mpich)
      FI_PROVIDER=tcp FI_TCP_IFACE=lo timeout -k 5 "$limit_s" \
        mpirun.mpich -launcher fork -iface lo -n "$ranks" "$@" ;;
  esac
}

export STATUS=$work/status

# Fewer fds than there are allocations, so that the broker must evict and ask again.
max_fds=$((ranks * 4 + ranks * buffers / 2))
job() { launch fdbroker run --join --max-fds "$max_fds" -- "$@"; }

passed=0 failed=0
check() { # NAME STATUS [LOG]
  if [ "$2" = 0 ]; then
    passed=$((passed + 1)); echo "ok      $1"
  else
    failed=$((failed + 1)); echo "FAILED  $1"; [ $# -lt 3 ] || tail -n 40 "$3"
  fi
}

# The bytes that rank.c must have verified: each buffer of each rank twice by every other rank, and in each round the
# buffer that is freed while one neighbour uses it.
expected_bytes() {
  local total=0 round rank buffer born held
  for ((round = 0; round < rounds; round++)); do
    held=$(((life_rounds - round % life_rounds) % life_rounds))
    for ((buffer = 0; buffer < buffers; buffer++)); do
      for ((born = round; born > 0 && (buffer + born - 1) % life_rounds != 0; born--)); do :; done
      for ((rank = 0; rank < ranks; rank++)); do
        local size=$((size_unit * (1 + (rank + 5 * buffer + 3 * born) % size_steps)))
        total=$((total + 2 * (ranks - 1) * size))
        [ "$buffer" != "$held" ] || total=$((total + size))
      done
    done
  done
  echo "$total"
}

# field NAME: the number after it in the summary.
field() { sed -n "s/.*$1 \([0-9][0-9]*\).*/\1/p" <<< "$summary"; }
# json NAME: this number of the broker's status.
json() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" "$STATUS"; }
is() { [ "$2" = "$3" ]; check "$1: $2" $?; }
above() { [ "${2:-0}" -gt "$3" ]; check "$1: ${2:-none}" $?; }

# Rank 0 asks the broker for its counts when it is done; the broker lives until then, since the shell has joined, too.
# shellcheck disable=SC2016
job sh -c '"$@" || exit
  [ "${OMPI_COMM_WORLD_RANK-${PMI_RANK-${PMIX_RANK-}}}" != 0 ] || fdbroker status --json > "$STATUS"' \
  sh "$work/rank" "$ranks" "$rounds" "$buffers" > "$work/out" 2> "$work/err"
status=$?
cat "$work/out" "$work/err" > "$work/both"
check "$launcher: $ranks ranks over $rounds rounds" "$status" "$work/both"
summary=$(grep -a '^ranks ' "$work/out")
if [ "$status" = 0 ]; then
  is "ranks" "$(field ranks)" "$ranks"
  is "rounds" "$(field rounds)" "$rounds"
  is "bytes verified" "$(field 'bytes verified')" "$(expected_bytes)"
  is "mismatches" "$(field mismatches)" 0
  above "handles of freed memory refused" "$(field refused)" 0
  above "addresses reused" "$(field reused)" 0
  above "hits" "$(field hits)" 0
  above "evicted" "$(field evicted)" 0
  above "evictions by the broker" "$(json evictions)" 0
  node=$(sed -n 's/.*"fds":{[^}]*"peak":\([0-9]*\).*/\1/p' "$STATUS")
  [ "${node:-$((max_fds + 1))}" -le "$max_fds" ]
  check "fds on the node at most ${node:-unknown}, cap $max_fds" $?
fi

OMPI_MCA_oob_tcp_if_include=lo "$work/rank" "$ranks" 1 "$buffers" > "$work/both" 2>&1
[ $? != 0 ] && grep -q "the world has 1" "$work/both"
check "a rank that is alone in its world fails" $? "$work/both"

job "$work/mpi_alltoall" > "$work/both" 2>&1 &&
  grep -q "^mpi_alltoall: $ranks ranks, .* 0 bytes wrong$" "$work/both"
check "example mpi_alltoall.c" $? "$work/both"

# Debian's mpi4py links Open MPI.
if [ "$mpi" = openmpi ]; then
  if /usr/bin/python3 -c 'import mpi4py' 2> /dev/null; then
    job /usr/bin/python3 "$here/rank.py" "$ranks" > "$work/both" 2>&1 &&
      grep -q "^rank.py: $ranks ranks, .* 0 bytes wrong$" "$work/both"
    check "rank.py: from Python by ctypes" $? "$work/both"
  elif [ -n "${FDBROKER_NOT_RUN_LOG-}" ]; then
    # tests/run.sh names it, and does not count it as passed.
    echo "MPI: rank.py: python3-mpi4py is not installed; run: sudo tests/install.sh" >> "$FDBROKER_NOT_RUN_LOG"
    passed=$((passed + 1))
  else
    check "rank.py: python3-mpi4py is not installed; run: sudo tests/install.sh" 1
  fi
fi

echo "$summary"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
