#!/bin/bash
# Builds the wheel: the Python package with the library, the programs and the layers inside, stripped.
# Must never name a platform that its files do not run on: the tag comes from their symbols, and auditwheel has the last word.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
root=$(readlink -f "$here/../..")

built='' out=$here/dist
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help)
      cat << 'HELP'
usage: libclient/python/build.sh [--built DIR] [--out DIR]

Builds the workspace in the profile release, and then dist/fdbroker-VERSION-py3-none-manylinux_*.whl. Needs Rust, a C linker,
binutils and Python 3. Prints the wheel's path last.

  --built DIR   takes the programs and libraries that cargo has built in DIR (target/debug for a quick try), and builds nothing
  --out DIR     writes the wheel there instead of dist/

With auditwheel installed (pip install auditwheel; AUDITWHEEL names another) the platform tag is checked.
HELP
      exit 0 ;;
    --built) built=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    *) echo "build.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
  esac
done

if [ -z "$built" ]; then
  cd "$root"
  cargo build --release --quiet -p fdbroker -p fdbrokerd --bins
  cargo build --release --quiet --lib -p fdbroker-capi -p fdbroker-cuda-layer -p fdbroker-ze-layer
  built=${CARGO_TARGET_DIR:-$root/target}/release
fi
built=$(readlink -f "$built")
"$root/libclient/capi/link.sh" "$built"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
native=$work/fdbroker/native
mkdir -p "$native/bin" "$native/lib/fdbroker/level-zero"
cp "$here"/fdbroker/*.py "$here/fdbroker/py.typed" "$work/fdbroker/"
# As systemd/install.sh places them; a wheel has no links, so the Level Zero layer has only the name that the loader opens.
strip -o "$native/bin/fdbroker" "$built/fdbroker"
strip -o "$native/bin/fdbrokerd" "$built/fdbrokerd"
strip --strip-unneeded -o "$native/lib/libfdbroker.so.0" "$built/capi/libfdbroker.so.0"
strip --strip-unneeded -o "$native/lib/fdbroker/libfdbroker_cuda.so" "$built/libfdbroker_cuda.so"
strip --strip-unneeded -o "$native/lib/fdbroker/level-zero/libze_validation_layer.so.1" "$built/libfdbroker_ze.so"
chmod 0755 "$native"/bin/*
mkdir "$work/docs" && cp "$root"/LICENSE-* "$root/docs/python.md" "$work/docs/"

version=$("$native/bin/fdbroker" --version | awk '{ print $2 }')
# The newest version of the C library that a symbol asks for.
glibc=$(find "$native" -type f -exec readelf --version-info --wide {} + | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1)
# What an older system would lack: Red Hat Enterprise Linux 9 has 2.34 and a kernel that the daemon runs on, older ones mostly neither.
if [ "${glibc#GLIBC_2.}" -gt 34 ]; then
  find "$native" -type f -exec objdump -T {} + | awk -v oldest=34 '
    /file format/ { file = $1; sub(".*/", "", file); sub(":$", "", file) }
    match($0, /GLIBC_2\.[0-9]+/) && substr($0, RSTART + 8, RLENGTH - 8) + 0 > oldest {
      print "needs glibc newer than 2." oldest ": " file " " $NF " " substr($0, RSTART, RLENGTH) }' | sort -u >&2
fi
tag=py3-none-manylinux_2_${glibc#GLIBC_2.}_$(uname -m)
mkdir -p "$out"
wheel=$(python3 "$here/pack.py" "$work" "$version" "$tag" "$out")

bytes=$(stat -c %s "$wheel")
echo "$wheel: $((bytes / 1048576)) MiB, $tag" >&2
if command -v "${AUDITWHEEL:-auditwheel}" > /dev/null; then
  "$here/audit.sh" "$wheel"
else
  echo "not checked: auditwheel is not installed (pip install auditwheel)" >&2
fi
echo "$wheel"
