#!/bin/bash
# Makes src/bindings.rs and src/result_names.rs from the published Level Zero headers, the same to the byte every time.
# Must never use another version of bindgen or of the headers than those named here and in fetch.sh.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
repository=$here/../..
bindgen_version=0.73.2
header_version='@version v1.12-r1.12.15'

usage() {
  cat << 'HELP'
usage: libclient/level-zero-sys/regen.sh [--check]

Writes src/bindings.rs and src/result_names.rs. With --check it writes nothing and compares: exit 1 when they differ.
It fetches the headers through apt (fetch.sh) and, unless BINDGEN names one, builds bindgen with cargo, both
once, into tests/level_zero/img (another place: FDBROKER_ZE_IMG=DIR). Exit status 77: no libclang, which it needs
(tests/install.sh).
HELP
}
die() { echo "regen.sh: $1" >&2; shift; for line in "$@"; do echo "  $line" >&2; done; exit 1; }

check=''
case ${1-} in
  '') ;;
  --check) check=yes ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac

# Looked for before bindgen is built, which takes minutes, and in the places where bindgen looks.
has_libclang() {
  local dir
  [ -z "${LIBCLANG_PATH-}" ] || return 0
  for dir in /usr/lib /usr/lib64 /usr/lib/*-linux-gnu /usr/lib/llvm*/lib /usr/local/lib; do
    compgen -G "$dir/libclang.so*" > /dev/null && return
    compgen -G "$dir/libclang-[0-9]*.so*" > /dev/null && return
  done
  return 1
}
has_libclang || { echo "libclang is not installed; run: sudo tests/install.sh" >&2; exit 77; }

image=$(realpath -m "${FDBROKER_ZE_IMG:-$repository/tests/level_zero/img}")
"$here/fetch.sh" "$image/debian13"
headers=$image/debian13/usr/include
grep -qF "$header_version" "$headers/level_zero/ze_api.h" || die "$headers is not of ${header_version#@version }"

bindgen=${BINDGEN:-$image/bindgen/bin/bindgen}
is_pinned() { [ "$("$bindgen" --version 2> /dev/null)" = "bindgen $bindgen_version" ]; }
if [ -z "${BINDGEN-}" ] && ! is_pinned; then
  # Not optimised: that would take longer than its one run.
  cargo install bindgen-cli --version "$bindgen_version" --locked --quiet --debug --root "$image/bindgen" \
    --target-dir "$image/bindgen/target" --no-track --force >&2 || die "cargo could not build bindgen $bindgen_version"
  rm -rf "$image/bindgen/target"
fi
is_pinned || die "$bindgen is not bindgen $bindgen_version"

# The functions that the library's backend, the layer, the test driver and the tests call, and no more.
any() { local IFS='|'; echo "($*)"; }
functions=(
  Init InitDrivers
  DriverGet DriverGetApiVersion DriverGetProperties DriverGetIpcProperties DriverGetExtensionProperties
  DriverGetExtensionFunctionAddress
  DeviceGet DeviceGetProperties DeviceGetMemoryProperties DeviceGetExternalMemoryProperties DevicePciGetPropertiesExt
  ContextCreate ContextDestroy
  MemAllocDevice MemAllocHost MemFree MemFreeExt MemGetAllocProperties MemGetAddressRange
  MemGetIpcHandle MemPutIpcHandle MemOpenIpcHandle MemCloseIpcHandle
  MemGetIpcHandleFromFileDescriptorExp MemGetFileDescriptorFromIpcHandleExp
  VirtualMemReserve VirtualMemFree VirtualMemMap VirtualMemUnmap PhysicalMemCreate PhysicalMemDestroy
  CommandQueueCreate CommandQueueDestroy CommandQueueExecuteCommandLists CommandQueueSynchronize
  CommandListCreate CommandListCreateImmediate CommandListClose CommandListReset CommandListDestroy
  CommandListAppendMemoryCopy CommandListAppendMemoryFill CommandListAppendBarrier CommandListHostSynchronize
  FenceCreate FenceDestroy FenceHostSynchronize FenceQueryStatus FenceReset
  EventPoolCreate EventPoolDestroy EventPoolGetIpcHandle EventPoolPutIpcHandle EventPoolOpenIpcHandle EventPoolCloseIpcHandle
  EventCreate EventDestroy
  EventHostSignal EventHostSynchronize EventQueryStatus EventHostReset
)
tables=(global driver device context mem mem_exp virtual_mem physical_mem command_queue command_list fence event_pool event)
structures=(
  base_desc base_properties external_memory_export_desc external_memory_export_fd external_memory_import_fd
)
enumerations=(
  external_memory_type_flag ipc_memory_flag ipc_property_flag init_driver_type_flag device_mem_alloc_flag
  device_property_flag device_memory_property_flag command_queue_group_property_flag
  driver_memory_free_policy_ext_flag event_pool_flag fence_flag memory_access_cap_flag
)
types="ze_$(any "${structures[@]}")_t|ze_$(any "${enumerations[@]}")_t|ze_$(any "${tables[@]}")_dditable_t"
types="$types|ze_pfn$(any "${functions[@]}")_t"
getters=(Global Driver Device Context Mem MemExp VirtualMem PhysicalMem CommandQueue CommandList Fence EventPool Event)
types="$types|ze_pfnGet$(any "${getters[@]}")ProcAddrTable_t"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# prettyplease, not rustfmt: it is part of the pinned bindgen; the machine's rustfmt has any version.
"$bindgen" "$here/wrapper.h" --rust-target 1.85 --rust-edition 2024 --formatter prettyplease --use-core \
  --default-enum-style newtype --with-derive-default --merge-extern-blocks --no-doc-comments --ignore-functions \
  --allowlist-type "$types" --allowlist-var 'ZE_MAX_(IPC_HANDLE_SIZE|DEVICE_NAME)' \
  --raw-line '// From level_zero/ze_api.h and ze_ddi.h, v1.12-r1.12.15. MIT, (C) Intel Corporation: see LICENSE.' \
  --raw-line '// Written by regen.sh: change that, not this.' \
  -o "$work/bindings.rs" -- -I"$headers" -std=c11

{
  echo '// Written by regen.sh: change that, not this.'
  echo 'names! {'
  sed -n 's/^    pub const \(ZE_RESULT_[A-Z0-9_]*\):.*/    \1/p' "$work/bindings.rs" | grep -v _FORCE_UINT32
  echo '}'
} > "$work/result_names.rs"
[ "$(wc -l < "$work/result_names.rs")" -gt 40 ] || die "hardly any result code found in the bindings"

status=0
for file in bindings.rs result_names.rs; do
  if [ -z "$check" ]; then
    cp "$work/$file" "$here/src/$file"
  elif ! diff -u "$here/src/$file" "$work/$file"; then
    echo "regen.sh: src/$file is not what regen.sh writes; run it without --check" >&2
    status=1
  fi
done
exit "$status"
