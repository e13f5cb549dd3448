#!/bin/bash
# Builds fdbroker if needed and installs what exists of it: programs, C library, header, pkg-config file, man pages,
# units, documentation. Must never leave half a file behind: each is written beside its place and renamed into it.
set -euo pipefail
umask 022

say() { echo "install.sh: $*"; }
die() { echo "install.sh: $1" >&2; shift; for line in "$@"; do echo "  $line" >&2; done; exit 1; }
usage_error() { echo "install.sh: $1 (--help explains)" >&2; exit 2; }

help() {
  cat << 'HELP'
usage: systemd/install.sh [--prefix DIR] [--libdir DIR] [--destdir DIR] [--no-build]

Builds the release programs and libraries if needed and installs what exists:

  PREFIX/bin               fdbroker, fdbrokerd
  LIBDIR                   libfdbroker.so.0.1.0 with its links .so.0 and .so, libfdbroker.a
  LIBDIR/pkgconfig         fdbroker.pc
  PREFIX/lib/fdbroker/level-zero      libfdbroker_ze.so with its link libze_validation_layer.so.1
  PREFIX/include           fdbroker.h, fdbroker_dl.h
  PREFIX/lib/systemd, lib/sysusers.d, lib/tmpfiles.d      units, which name PREFIX/bin
  PREFIX/share/man, PREFIX/share/doc/fdbroker             man pages; README, licences, examples

  --prefix DIR    where it will be used from (default /usr/local)
  --libdir DIR    the libraries' place there (default PREFIX/lib)
  --destdir DIR   put everything under DIR instead of /: for packages and tests; needs no root
  --no-build      install what `cargo build --release --workspace` built before

Running it again is harmless; running programs keep the file they have open. CARGO_TARGET_DIR is respected.
Exit status: 0 ok, 1 error, 2 usage.
HELP
}

# absolute NAME DIR: DIR as seen from where the caller stands, without a slash at its end.
absolute() {
  [ -n "$2" ] || usage_error "$1 needs a directory"
  case $2 in /*) path=$2 ;; *) path=$PWD/$2 ;; esac
  while [ "$path" != "${path%/}" ]; do path=${path%/}; done
  printf '%s\n' "$path"
}

prefix=/usr/local libdir='' destdir='' build=yes
while [ $# -gt 0 ]; do
  case $1 in
    --prefix=* | --libdir=* | --destdir=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
    --prefix | --libdir | --destdir)
      [ $# -ge 2 ] || usage_error "$1 needs a directory"
      case $1 in
        --destdir) destdir=$(absolute "$1" "$2") ;;
        --prefix) prefix=$2 ;;
        --libdir) libdir=$2 ;;
      esac
      shift 2 ;;
    --no-build) build=no; shift ;;
    -h | --help) help; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
done
libdir=${libdir:-$prefix/lib}
for path in "$prefix" "$libdir"; do
  # They are written into the units and the pkg-config file, where other characters have a meaning.
  [[ $path =~ ^/[A-Za-z0-9/._+-]*$ ]] ||
    usage_error "'$path' must be an absolute path of letters, digits and / . _ + -; another place for the files is --destdir"
done
if [ -n "${CARGO_TARGET_DIR-}" ]; then
  CARGO_TARGET_DIR=$(absolute CARGO_TARGET_DIR "$CARGO_TARGET_DIR")
  export CARGO_TARGET_DIR
fi

cd "$(dirname "$(readlink -f "$0")")/.."

# ---- build

built=${CARGO_TARGET_DIR:-$PWD/target}/release
if [ "$build" = yes ] && command -v cargo > /dev/null; then
  metadata=$(cargo metadata --format-version 1 --no-deps) || die "cargo cannot read this workspace; its message is above"
  built=$(sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p' <<< "$metadata")/release
  say "building in $built"
  # The whole workspace, as the tests do: with the same features, so that nothing is built twice.
  cargo build --release --workspace --quiet || die "the build failed; cargo's message is above" \
    "Rust 1.95 or later is needed (https://rustup.rs), and a C linker (package gcc)"
elif [ "$build" = yes ]; then
  say "no cargo in PATH: installing what was built before"
fi
[ -x "$built/fdbroker" ] && [ -x "$built/fdbrokerd" ] || die "nothing is built in $built" \
  "run as the user who has Rust: cargo build --release --workspace; then this again"

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version *= *"\(.*\)"/\1/p' Cargo.toml)

# ---- install

files=0
# place MODE SOURCE TARGET: one file, in place in one step, so that who has the old one open keeps it.
place() {
  local mode=$1 source=$2 target=$destdir$3 new
  install -d -m 0755 "${target%/*}" 2> /dev/null && new=$(mktemp "${target%/*}/.install.XXXXXX" 2> /dev/null) ||
    die "cannot write to ${target%/*}" "run as root, or choose another place with --prefix or --destdir"
  pending=$new
  install -m "$mode" "$source" "$new" && mv -fT "$new" "$target" ||
    die "cannot write $target" "is the disk full, or $target a directory?"
  pending=''
  files=$((files + 1))
  say "$target"
}

# place_filled MODE SOURCE TARGET [SED...]: a text file with its places filled in.
place_filled() {
  local mode=$1 source=$2 target=$3; shift 3
  sed "$@" "$source" > "$work/filled"
  place "$mode" "$work/filled" "$target"
}

# place_link NAME TARGET: a link to a file of the same directory.
place_link() {
  local link=$destdir$2 new
  new=${link%/*}/.install.link.$$
  pending=$new
  ln -sfn "$1" "$new" && mv -fT "$new" "$link" || die "cannot make the link $link" "is it a directory?"
  pending=''
  say "$link -> $1"
}

work=$(mktemp -d)
pending=''
trap 'rm -rf "$work"; [ -z "$pending" ] || rm -f "$pending"' EXIT

place 0755 "$built/fdbroker" "$prefix/bin/fdbroker"
place 0755 "$built/fdbrokerd" "$prefix/bin/fdbrokerd"

capi=libclient/capi
if [ -f "$built/libfdbroker.so" ]; then
  soname=libfdbroker.so.0
  [ -z "$(command -v readelf)" ] || readelf -d "$built/libfdbroker.so" | grep -qF "[$soname]" ||
    die "$built/libfdbroker.so does not name itself $soname" "it was built without $capi/build.rs: build it with cargo"
  place 0644 "$built/libfdbroker.so" "$libdir/$soname.${version#*.}"
  place_link "$soname.${version#*.}" "$libdir/$soname"
  place_link "$soname" "$libdir/libfdbroker.so"
  if [ -f "$built/libfdbroker.a" ]; then place 0644 "$built/libfdbroker.a" "$libdir/libfdbroker.a"; fi
  for header in "$capi"/include/*.h; do place 0644 "$header" "$prefix/include/${header##*/}"; done

  # What a static link needs beside the archive; rustc knows, and this is its answer where there is no rustc.
  private='-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc'
  if command -v rustc > /dev/null; then
    asked=$(rustc --crate-name libs --crate-type staticlib --print native-static-libs -o "$work/libs.a" - < /dev/null 2>&1 |
      sed -n 's/^note: native-static-libs: *//p')
    private=${asked:-$private}
  fi
  case $libdir in "$prefix"/*) pc_libdir="\${exec_prefix}${libdir#"$prefix"}" ;; *) pc_libdir=$libdir ;; esac
  place_filled 0644 "$capi/fdbroker.pc.in" "$libdir/pkgconfig/fdbroker.pc" -e '/^#/d' -e "s|@PREFIX@|$prefix|" \
    -e "s|@LIBDIR@|$pc_libdir|" -e "s|@VERSION@|$version|" -e "s|@LIBS_PRIVATE@|$private|"
else
  say "no C library in $built: left out"
fi

# Beside the program, whatever LIBDIR is: `fdbroker run --level-zero` looks there. In a directory of its own, because the
# loader opens the layer under a name that others have too, and the directory goes into LD_LIBRARY_PATH.
layer=$prefix/lib/fdbroker/level-zero
if [ -f "$built/libfdbroker_ze.so" ]; then
  place 0644 "$built/libfdbroker_ze.so" "$layer/libfdbroker_ze.so"
  place_link libfdbroker_ze.so "$layer/libze_validation_layer.so.1"
else
  say "no Level Zero layer in $built: left out"
fi

# Units name their program by its place.
shopt -s nullglob
in_prefix=(-e "s|/usr/bin/fdbroker|$prefix/bin/fdbroker|g")
for unit in systemd/*.service systemd/*.socket systemd/*.timer systemd/*.slice; do
  place_filled 0644 "$unit" "$prefix/lib/systemd/system/${unit##*/}" "${in_prefix[@]}"
done
for name in systemd/sysusers.d/*.conf systemd/*.sysusers; do
  base=${name##*/}; place 0644 "$name" "$prefix/lib/sysusers.d/${base%.*}.conf"
done
for name in systemd/tmpfiles.d/*.conf systemd/*.tmpfiles; do
  base=${name##*/}; place 0644 "$name" "$prefix/lib/tmpfiles.d/${base%.*}.conf"
done

while IFS= read -r page; do
  place 0644 "$page" "$prefix/share/man/man${page##*.}/${page##*/}"
done < <(find broker libclient systemd -name target -prune -o -type f -name 'fdbroker*.[1-8]' -print | sort)

doc=$prefix/share/doc/fdbroker
for text in README.md LICENSE-APACHE LICENSE-MIT libclient/SETTINGS.md libclient/protocol/PROTOCOL.md; do
  if [ -f "$text" ]; then place 0644 "$text" "$doc/${text##*/}"; fi
done
for example in "$capi"/examples/*.c libclient/examples/*.rs; do
  place 0644 "$example" "$doc/examples/${example##*/}"
done

if [ -z "$destdir" ] && [ "$(id -u)" = 0 ] && command -v ldconfig > /dev/null; then
  # Not every prefix is in the loader's configuration; programs then need LD_LIBRARY_PATH or an rpath.
  ldconfig || say "ldconfig complained; see its message"
  ldconfig -p | grep -qF "$libdir/libfdbroker.so.0" ||
    say "the loader does not look in $libdir: add it to /etc/ld.so.conf.d, or set LD_LIBRARY_PATH"
fi
say "$files files of fdbroker $version installed for $prefix${destdir:+, in $destdir}"
