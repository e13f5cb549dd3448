#!/bin/bash
# Tests the wheel with a Python that has no GIL. Debian has no such interpreter, but the source of one: it is built once, below target/.
# Must never install anything, nor change the system's apt configuration, nor name a mirror of its own.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
root=$(readlink -f "$here/../..")
die() { echo "free_threaded.sh: $1" >&2; exit 1; }

case ${1-} in
  -h | --help)
    cat << 'HELP'
usage: libclient/python/free_threaded.sh [ARGUMENT OF test.sh]...

Fetches the source of Python 3.13 from Debian 13 by apt, builds it with --disable-gil in target/free-threaded (four minutes of a
processor, the first time), and runs libclient/python/test.sh with it. Needs a host with Debian 12, a C compiler, make and the packages
dpkg-dev, libffi-dev and zlib1g-dev.
HELP
    exit 0 ;;
esac

folder=${CARGO_TARGET_DIR:-$root/target}/free-threaded
python=$folder/installed/bin/python3.13t
if [ ! -x "$python" ]; then
  mkdir -p "$folder/lists/partial" "$folder/source"
  # Where the host's own packages come from.
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Component: main' | sed -n 1p)
  [ -n "$mirror" ] || die "apt knows no mirror that carries Debian 12 (check /etc/apt/sources.list*, then: apt-get update)"
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" > "$folder/sources.list"
  apt=(-qq -o "Dir::State::Lists=$folder/lists" -o "Dir::Etc::SourceList=$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::Cache=$folder" -o APT::Sandbox::User=root -o Acquire::Languages=none)
  apt-get "${apt[@]}" update
  (cd "$folder/source" && apt-get "${apt[@]}" source --download-only python3.13 && tar -xf python3.13_*.orig.tar.xz --strip-components=1)
  echo "free_threaded.sh: building; its messages are in $folder/log" >&2
  (cd "$folder/source" && ./configure --disable-gil --prefix="$folder/installed" && make -j "$(nproc)" && make install) > "$folder/log" 2>&1 ||
    { tail -n 20 "$folder/log" >&2; die "Python could not be built"; }
fi
"$python" -c 'import sys, ctypes, zlib; assert not sys._is_gil_enabled()' || die "$python lacks something: are libffi-dev and zlib1g-dev there? rm -r $folder"
PYTHON=$python exec "$here/test.sh" "$@"
