#!/bin/sh
# Makes the C library from libfdbroker.a of a cargo build. rustc cannot make it: its version script excludes a second one, and its
# archive exports all of Rust's symbols. Must never leave half a file behind: each is made beside its place and then renamed.
set -eu

case ${1-} in
  -h | --help | '')
    cat << 'HELP'
usage: libclient/capi/link.sh DIR

Reads libfdbroker.a in DIR (target/debug, say) and makes in DIR/capi:
  libfdbroker.a      one object, in which nothing but fdbroker_* is global
  libfdbroker.so.0   linked from it, with the symbol versions of libfdbroker.map; libfdbroker.so is a link to it
  native-libs        the libraries that a program needs besides libfdbroker.a, as options for the linker
Does nothing when these are up to date. CC names another compiler than cc.
HELP
    exit 0 ;;
esac

here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
built=$(readlink -f "$1")
cc=${CC:-cc} out=$built/capi map=$here/libfdbroker.map header=$here/include/fdbroker.h
[ -f "$built/libfdbroker.a" ] || { echo "link.sh: there is no $built/libfdbroker.a; run cargo build first" >&2; exit 1; }
inputs=$(stat -L -c '%n %i %s %Y' "$built/libfdbroker.a" "$map" "$header" "$here/link.sh")
[ "$inputs" != "$(cat "$out/inputs" 2> /dev/null)" ] || exit 0

mkdir -p "$out"
work=$(mktemp -d "$out/link.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

grep -oE '\bfdbroker_[a-z_]+\(' "$header" | tr -d '(' | sort -u > names
# Groups would be merged with those of other archives by their names, and these are local afterwards.
"$cc" -nostdlib -r -o all.o -Wl,--gc-sections,--force-group-allocation $(sed 's/^/-Wl,-u,/' names) "$built/libfdbroker.a"
# Bitcode of the standard library, which tools with another LLVM cannot read.
objcopy --keep-global-symbols=names --remove-section=.llvmbc --remove-section=.llvmcmd all.o fdbroker.o
ar rcsD libfdbroker.a fdbroker.o

# rustc names these libraries; without it, this list is used.
libs=$(rustc --crate-name libs --crate-type staticlib --print native-static-libs -o libs.a - < /dev/null 2>&1 |
  sed -n 's/^note: native-static-libs: *//p')
echo "${libs:--lgcc_s -lutil -lrt -lpthread -lm -ldl -lc}" > native-libs
# The soname's number grows when a program built against an older header would no longer work. nodelete: a dlclose(3) with a context
# still open, or while the library thread runs its last instructions, must not unmap running code; nor may the handler that
# pthread_atfork(3) knows go away.
"$cc" -shared -o libfdbroker.so.0 fdbroker.o -Wl,-soname,libfdbroker.so.0 -Wl,--version-script="$map" -Wl,-z,nodelete \
  -Wl,-z,relro,-z,now,-z,noexecstack,-z,defs -Wl,--gc-sections,--build-id,--as-needed $(cat native-libs)
ln -s libfdbroker.so.0 libfdbroker.so

printf '%s\n' "$inputs" > inputs
mv -f libfdbroker.a libfdbroker.so.0 libfdbroker.so native-libs inputs "$out/"
