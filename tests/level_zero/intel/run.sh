#!/bin/bash
# Runs Intel's own Level Zero driver over an emulated render node, alone and under the layer, side by side: makes ready what table.sh
# needs, here or in the virtual machine. Ends with `N passed, N failed`. Must never take the packages' C library for this machine's.
. "$(dirname "$(readlink -f "$0")")/../../common/start.sh"
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../../.."

in_vm=''
case ${1-} in
  '') ;;
  --vm) in_vm=yes ;;
  -h | --help)
    cat << 'HELP'
usage: tests/level_zero/intel/run.sh [--vm]

Prints a table: each case with the driver alone, and under `fdbroker run --level-zero`. README.md says what it proves. With --vm in a
virtual machine (tests/vm; needs qemu), where buffers are real dma-bufs: the cases in which the kind of memory matters. The driver's packages
are those of FDBROKER_INTEL_DEBS=DIR (by default ../shared/intel_driver/debs beside this checkout, when it is there), checked by
their sums, else what Debian's unstable suite has today. They are unpacked into tests/level_zero/img (another place:
FDBROKER_ZE_IMG=DIR). Exit status 77: it cannot run here.
HELP
    exit 0 ;;
  *) echo "tests/level_zero/intel/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cannot() { echo "$*"; exit 77; }
[ "$(uname -m)" = x86_64 ] || cannot "Intel's driver is for x86-64"
for tool in gcc patchelf dpkg-deb strip ${in_vm:+qemu-system-x86_64}; do
  command -v "$tool" > /dev/null || cannot "$tool is not installed; run: sudo tests/install.sh"
done

given=${FDBROKER_INTEL_DEBS-}
[ -n "$given" ] || [ ! -d ../shared/intel_driver/debs ] || given=../shared/intel_driver/debs
root=$(realpath -m "${FDBROKER_ZE_IMG:-$here/../img}")/intel
"$here/fetch.sh" "$root" ${given:+"$given"} > "$work/log" 2>&1 || cannot "no driver: $(tail -n 1 "$work/log")"
echo "-- $(grep -h -e libze-intel-gpu1 "$root/.packages"), $(grep -h -e libze1_ "$root/.packages")"

target=$(tests/programs.py) || { echo "the build failed"; exit 1; }
for variable in ${!FDBROKER_@} ${!ZE_@} ${!NEO@} LD_LIBRARY_PATH LD_PRELOAD; do
  case $variable in FDBROKER_TEST_PROGRAMS | FDBROKER_NOT_RUN_LOG | FDBROKER_VM_IMG) ;; *) unset "$variable" ;; esac
done
libraries=$root/usr/lib/x86_64-linux-gnu room=$work/room
mkdir "$room"
# Debug information would only fill the guest's memory.
for file in fdbroker libfdbroker_ze.so ze-test-memory; do strip --strip-debug -o "$room/$file" "$target/$file" || exit 1; done
compile=(gcc -O1 -Wall -Wextra -Werror)
# The program runs on the packages' C library, by its interpreter and its own library folder: the driver needs a newer one than
# this machine may have. Other programs that it starts do not.
there=${in_vm:+/tmp/intel} there=${there:-$libraries}
"${compile[@]}" -shared -fPIC -fvisibility=hidden "$here/node.c" -o "$room/node.so" -ldl -lpthread &&
  "${compile[@]}" "$here/cases.c" -o "$work/own" "-L$libraries" -l:libze_loader.so.1 -ldl -Wl,--allow-shlib-undefined &&
  patchelf --set-interpreter "$there/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$there" --output "$room/cases" "$work/own" ||
  { echo "the programs do not compile"; exit 1; }

if [ -z "$in_vm" ]; then
  apart=apart
  words=$(unshare --user --map-root-user --pid --fork true 2>&1) || { apart='' && not_run "level zero, Intel: other PID namespaces" "$words"; }
  "$here/table.sh" "$room" "$libraries" whole $apart
  exit
fi
# All in one archive: the guest's own libraries are this machine's. Its start unpacks them into memory.
tar -C "$libraries" -cf "$work/intel.tar" . && tar -C "$room" -cf "$work/room.tar" node.so cases || exit 1
cat > "$work/guest" << 'GUEST'
#!/bin/sh
mkdir /tmp/intel && tar -C /tmp/intel -xf /t/intel.tar && tar -C /t -xf /t/room.tar && rm /t/intel.tar || exit 1
exec sh /t/table.sh /t /tmp/intel sample
GUEST
chmod +x "$work/guest"
tests/vm/run.sh -m 4096 -t 3000 -f "$work/intel.tar" -f "$work/room.tar" -f "$here/table.sh" -f "$room/fdbroker" -f "$room/libfdbroker_ze.so" \
  -f "$room/ze-test-memory" -e NODE_MEMORY=udmabuf "$work/guest"
