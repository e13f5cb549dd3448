#!/bin/bash
# Copies a program so that the copy runs with Debian 13's Level Zero loader (1.20.6) on a host with an older one.
# Must never change the program itself, the loader or the system. The copy runs on this host only.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")

usage() {
  cat << 'HELP'
usage: tests/level_zero/debian13.sh PROGRAM COPY

COPY is PROGRAM with Debian 13's dynamic linker and library folder written into it: that loader needs a newer libstdc++
than Debian 12 has, and that a newer C library. COPY uses them, and so do processes that it starts by its own path; other
programs that it starts do not. LD_LIBRARY_PATH still adds libraries that Debian 13's folder here does not have, a Level
Zero layer for example. Fetches Debian 13's files once, into tests/level_zero/img (another place:
FDBROKER_ZE_IMG=DIR).
HELP
}
case ${1-} in
  -h | --help) usage; exit 0 ;;
esac
[ $# = 2 ] || { usage >&2; exit 2; }
command -v patchelf > /dev/null || {
  echo "debian13.sh: no patchelf; run: sudo tests/install.sh" >&2
  exit 1
}

image=$(realpath -m "${FDBROKER_ZE_IMG:-$here/img}")/debian13
"$here/../../libclient/level-zero-sys/fetch.sh" "$image"

# Only the libraries that must be Debian 13's: a folder in the program itself comes before LD_LIBRARY_PATH. The tracing
# layer is one of them: the loader always loads it, and fails (ZE_RESULT_ERROR_UNSUPPORTED_VERSION) with an older one's.
libraries=$image/for-programs
names=(libze_loader.so.1 libze_tracing_layer.so.1 libstdc++.so.6 libgcc_s.so.1
  libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1)
if [ ! -d "$libraries" ]; then
  staged=$(mktemp -d "$libraries.XXXXXX")
  for name in "${names[@]}"; do ln -s "../usr/lib/x86_64-linux-gnu/$name" "$staged/$name"; done
  chmod 755 "$staged"
  mv -T "$staged" "$libraries" 2> /dev/null || rm -rf "$staged"
fi
# DT_RPATH, not DT_RUNPATH: it must apply to the loader's own libraries, too.
patchelf --set-interpreter "$image/usr/lib64/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$libraries" \
  --output "$2" "$1"
