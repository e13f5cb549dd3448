#!/bin/bash
# Runs unmodified programs under the layer, with the test driver and Debian 13's loader, and ends with `N passed, N failed`. Must never
# change a file of a program's, nor take another version than the one that is pinned.
. "$(dirname "$(readlink -f "$0")")/../../common/start.sh"
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../../.."

case ${1-} in
  umf | intel-mpi) ;;
  *)
    cat << 'HELP'
usage: tests/level_zero/programs/run.sh umf|intel-mpi

umf        UMF 1.2.0's wheel: a producer of 600 handles under 256 fds, and a consumer, also in a PID namespace of its own
intel-mpi  Intel MPI 2021.19's wheel (129 MB), by hand and not in tests/run.sh: two ranks send device memory, by its pidfd mode and by
           its scm mode, with each kind of handle that the driver has; every byte is checked

The wheels come from the Python package index by pip, with the sums that stand here, into tests/level_zero/img (another place:
FDBROKER_ZE_IMG=DIR). Exit status 77: no wheel or no tool here.
HELP
    [ "${1-}" = --help ] || [ "${1-}" = -h ]
    exit ;;
esac
part=$1 passed=0 failed=0 limit_s=300
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cannot() { echo "$*"; exit 77; }
for tool in gcc patchelf python3; do command -v "$tool" > /dev/null || cannot "$tool is not installed; run: sudo tests/install.sh"; done

# The wheel's files, unpacked once.
image=$(realpath -m "${FDBROKER_ZE_IMG:-$here/../img}")/$part
if [ ! -d "$image" ]; then
  python3 -m pip download --quiet --no-deps --only-binary :all: --require-hashes --dest "$work" -r "$here/$part.txt" > "$work/log" 2>&1 ||
    cannot "no wheel: $(tail -n 1 "$work/log")"
  mkdir -p "$(dirname "$image")" && python3 -m zipfile -e "$work"/*.whl "$work/files" && mv "$work/files"/*.data/data "$image" ||
    cannot "the wheel cannot be unpacked"
fi

target=$(tests/programs.py) || { echo "the build failed"; exit 1; }
for variable in ${!FDBROKER_@} ${!ZE_@} LD_LIBRARY_PATH LD_PRELOAD; do
  case $variable in FDBROKER_TEST_PROGRAMS | FDBROKER_NOT_RUN_LOG | FDBROKER_ZE_IMG) ;; *) unset "$variable" ;; esac
done
export ZE_ENABLE_ALT_DRIVERS=$target/libfdbroker_ze_test_driver.so
layer() { "$target/fdbroker" run --level-zero "$@"; }
# try NAME COMMAND...
try() {
  local name=$1 out; shift
  if out=$("$@" 2> "$work/errors"); then passed=$((passed + 1)); echo "ok      $name: $(tail -n 1 <<< "$out")"
  else failed=$((failed + 1)); echo "FAILED  $name: $out"; tail -n 20 "$work/errors"; fi
}
# newer PROGRAM LINK...: compiles PROGRAM.c for Debian 13's loader, with the wheel's libraries.
newer() {
  local program=$1; shift
  gcc -O1 -Wall -Wextra -Werror "$here/$program.c" -o "$work/own" "$@" -l:libze_loader.so.1 "-L$image/lib" &&
    "$here/../debian13.sh" "$work/own" "$work/$program" &&
    patchelf --force-rpath --set-rpath "$(patchelf --print-rpath "$work/$program"):$image/lib" "$work/$program" ||
    { echo "$program.c does not build"; exit 1; }
}

if [ "$part" = umf ]; then
  ldconfig -p | grep 'libhwloc\.so\.15' > /dev/null || cannot "libhwloc15 is not installed; run: sudo tests/install.sh"
  newer umf "-I$image/include" -lumf
  for handles in legacy opaque; do
    export ZE_TEST_DRIVER_HANDLES=$handles
    run_umf() { (ulimit -Sn 256 && layer --max-fds 64 -- timeout -k 5 "$limit_s" "$work/umf" "$@"); }
    try "UMF, $handles handles" run_umf
    if words=$(unshare --user --map-root-user --pid --fork true 2>&1); then
      try "UMF, $handles handles, in another PID namespace" run_umf apart
    else
      not_run "level zero: UMF in another PID namespace" "$words"
    fi
  done
fi
if [ "$part" = intel-mpi ]; then
  # MPICH's header: the two have one ABI. The wheel's archive keeps no permissions.
  include=$(mpicc.mpich -show 2> /dev/null | grep -o -m 1 -- '-I[^ ]*') || cannot "mpicc.mpich is not installed; run: sudo tests/install.sh"
  chmod +x "$image/bin"/*
  newer intel-mpi "$include" -lmpi -Wl,--allow-shlib-undefined
  # 12 runs of some seconds each, with a processor for each rank or not.
  limit_s=60
  # A rank that waits yields its processor: one that spins keeps the broker and the other rank from it for whole slices of time.
  export I_MPI_THREAD_YIELD=2
  export I_MPI_ROOT=$image PATH=$image/bin:$PATH I_MPI_HYDRA_BOOTSTRAP=fork I_MPI_FABRICS=shm I_MPI_OFFLOAD=1 I_MPI_OFFLOAD_TOPOLIB=level_zero
  for handles in legacy opaque one-number; do
    for mode in pidfd scm; do
      export ZE_TEST_DRIVER_HANDLES=$handles I_MPI_OFFLOAD_IPC_MODE=$mode
      ranks=(timeout -k 5 "$limit_s" mpiexec.hydra -n 2 "$work/intel-mpi")
      # For comparison: it is not ours to judge.
      alone=$("${ranks[@]}" 2> /dev/null | grep right) || alone="not right"
      echo "        Intel MPI, $mode, $handles handles, the driver alone: $alone"
      try "Intel MPI, $mode, $handles handles" layer -- "${ranks[@]}"
    done
  done
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
