#!/bin/bash
# Builds fdbroker if needed, and installs or removes it: programs, C library, headers, pkg-config file, man pages, units,
# documentation. Must never leave half a file behind (each file is written beside its place and then renamed), nor change an
# administrator's configuration.
set -euo pipefail
umask 022

say() { echo "install.sh: $*"; }
die() { echo "install.sh: $1" >&2; shift; for line in "$@"; do echo "  $line" >&2; done; exit 1; }
usage_error() { echo "install.sh: $1 (--help explains)" >&2; exit 2; }

help() {
  cat << 'HELP'
usage: systemd/install.sh [--prefix DIR] [--libdir DIR] [--destdir DIR] [--from DIR] [--any-state] [--without-libraries]
                          [--keep-debug] [--systemd VERSION]
       systemd/install.sh --uninstall [--prefix DIR] [--libdir DIR] [--destdir DIR]

Builds the release programs and libraries if needed, and installs:

  PREFIX/bin               fdbroker, fdbrokerd
  LIBDIR                   libfdbroker.so.0.1.0 with its links .so.0 and .so, libfdbroker.a; all libraries are stripped, and
                           the debug information of a shared one is in the directory .debug beside it
  LIBDIR/pkgconfig         fdbroker.pc
  LIBDIR/cmake/fdbroker    the package fdbroker for CMake
  PREFIX/lib/fdbroker      libfdbroker_cuda.so
  PREFIX/lib/fdbroker/level-zero      libfdbroker_ze.so with its link libze_validation_layer.so.1
  PREFIX/include           fdbroker.h, fdbroker_dl.h
  PREFIX/lib/systemd, lib/sysusers.d, lib/tmpfiles.d      units, with the paths of PREFIX/bin
  PREFIX/share/man, PREFIX/share/doc/fdbroker             man pages; README, licences, examples
  PREFIX/share/bash-completion, zsh, fish                 completions for shells
  PREFIX/share/fdbroker    the list of what was installed
  /etc/fdbroker            fdbrokerd.toml, every key with its default, unless the file exists

  --prefix DIR    where it will be used from (default /usr/local)
  --libdir DIR    where the libraries go (default PREFIX/lib)
  --destdir DIR   put everything under DIR instead of /, for packages and tests; needs no root
  --from DIR      install what was built before in DIR (target/release, say) instead of building
  --any-state     install what is built, whatever it was built from. Without it nothing is installed that is older than a source
                  of it, or that was built from another checkout: cargo's record of the sources (NAME.d) tells
  --without-libraries     programs only: no C library, no headers, no layers. Without it a missing library is an error
  --keep-debug    leave debug information in the libraries, for packages, whose own tools set it apart
  --systemd N     install for this version of systemd (default: this machine's); from 254 on a stop keeps the fd store
  --uninstall     stop the service and remove what was installed; /etc/fdbroker and the user fdbroker stay

As root and without --destdir it also makes the user and the directories, and makes systemd read the units. It starts
nothing. It can be run again at any time: running programs keep the files that they have open. It uses CARGO_TARGET_DIR.
Exit status: 0 ok, 1 error, 2 usage.
HELP
}

# absolute NAME DIR: DIR as an absolute path, from the caller's directory, without a slash at its end.
absolute() {
  [ -n "$2" ] || usage_error "$1 needs a directory"
  case $2 in /*) path=$2 ;; *) path=$PWD/$2 ;; esac
  while [ "$path" != "${path%/}" ]; do path=${path%/}; done
  printf '%s\n' "$path"
}

prefix=/usr/local libdir='' destdir='' from='' systemd='' uninstall='' any_state='' without_libraries='' keep_debug=''
while [ $# -gt 0 ]; do
  case $1 in
    --prefix=* | --libdir=* | --destdir=* | --from=* | --systemd=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
    --prefix | --libdir | --destdir | --from)
      [ $# -ge 2 ] || usage_error "$1 needs a directory"
      case $1 in
        --destdir) destdir=$(absolute "$1" "$2") ;;
        --from) from=$(absolute "$1" "$2") ;;
        --prefix) prefix=$2 ;;
        --libdir) libdir=$2 ;;
      esac
      shift 2 ;;
    --systemd)
      [[ ${2-} =~ ^[0-9]{1,4}$ ]] || usage_error "--systemd needs a version, such as 252"
      systemd=$2; shift 2 ;;
    --uninstall) uninstall=yes; shift ;;
    --any-state) any_state=yes; shift ;;
    --without-libraries) without_libraries=yes; shift ;;
    --keep-debug) keep_debug=yes; shift ;;
    -h | --help) help; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
done
libdir=${libdir:-$prefix/lib}
for path in "$prefix" "$libdir"; do
  # The units and the pkg-config file contain these paths, and there other characters have a meaning.
  [[ $path =~ ^/[A-Za-z0-9/._+-]*$ ]] ||
    usage_error "'$path' must be an absolute path of letters, digits and / . _ + -; another place for the files is --destdir"
done
if [ -n "${CARGO_TARGET_DIR-}" ]; then
  CARGO_TARGET_DIR=$(absolute CARGO_TARGET_DIR "$CARGO_TARGET_DIR")
  export CARGO_TARGET_DIR
fi

cd "$(dirname "$(readlink -f "$0")")/.."
# Whether to change this machine itself (user, directories, systemd), not only files.
is_live=''
if [ -z "$destdir" ] && [ "$(id -u)" = 0 ]; then is_live=yes; fi
is_booted=''
if [ -n "$is_live" ] && [ -d /run/systemd/system ]; then is_booted=yes; fi
list=$prefix/share/fdbroker/installed

# ---- uninstall

# remove_listed: reads paths, removes these files, and then the directories that are empty.
remove_listed() {
  local path
  while IFS= read -r path; do
    # Only paths under the prefix: the list is a file like any other and may be damaged.
    case $path in "$prefix"/*) ;; "$libdir"/*) ;; *) say "not removed: $path"; continue ;; esac
    case $path in */../*) continue ;; esac
    [ -e "$destdir$path" ] || [ -L "$destdir$path" ] || continue
    rm -f "$destdir$path" || die "cannot remove $destdir$path" "run as root"
    # Removes the directories that are empty now, up to the prefix.
    (cd "$destdir$prefix" && rmdir -p --ignore-fail-on-non-empty "$(dirname "${path#"$prefix"/}")") 2> /dev/null || true
  done
}

if [ -n "$uninstall" ]; then
  [ -f "$destdir$list" ] || die "nothing is installed: there is no $destdir$list" \
    "give the same --prefix, --libdir and --destdir as for the installation"
  if [ -n "$is_booted" ]; then
    # An earlier version had not these.
    systemctl disable --now --quiet fdbroker-metrics.service fdbroker-{textfile,audit}.timer 2> /dev/null || true
    systemctl disable --now --quiet fdbrokerd.socket fdbrokerd-admin.socket fdbrokerd.service ||
      say "systemctl complained; see its message"
    # From systemd 254 on the store outlives the stop, and its fds pin memory. Older ones have no such store to clean.
    systemctl clean --what=fdstore fdbrokerd.service 2> /dev/null || true
  fi
  removed=$(wc -l < "$destdir$list")
  paths=$(cat "$destdir$list")
  remove_listed <<< "$paths"$'\n'"$list"
  if [ -n "$is_booted" ]; then systemctl daemon-reload; fi
  if [ -n "$is_live" ]; then rm -rf /run/fdbroker /run/fdbroker-admin; fi
  say "$removed files of $prefix removed; /etc/fdbroker and the user fdbroker stay"
  exit 0
fi

# ---- build

built=${from:-${CARGO_TARGET_DIR:-$PWD/target}/release}
if [ -z "$from" ] && command -v cargo > /dev/null; then
  metadata=$(cargo metadata --format-version 1 --no-deps) || die "cargo cannot read this workspace; its message is above"
  built=$(sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p' <<< "$metadata")/release
  say "building in $built"
  # The whole workspace, like the tests: the same features, so that nothing is built twice.
  cargo build --release --workspace --locked --quiet || die "the build failed; cargo's message is above" \
    "Rust 1.95 or later is needed (https://rustup.rs), and a C linker (package gcc)"
elif [ -z "$from" ]; then
  say "no cargo in PATH: installing what was built before"
fi
# check_state FILE: ends unless this program or library was built from this checkout as it is now. cargo has its sources, by
# absolute path, in the file NAME.d beside it.
check_state() {
  local built_file=$1 record source sources remedy
  record=${1##*/} record=${1%/*}/${record%.*}.d
  remedy="build again, as the user who has Rust: cargo build --release --workspace; or give --any-state to install it as it is"
  [ -f "$record" ] || die "$built_file: nothing tells its sources, because there is no $record" "$remedy"
  # Spaces in a path are escaped.
  sources=$(sed -n '1{s/^[^:]*: *//; s/\\ /\x01/g; s/ /\n/g; s/\x01/ /g; p}' "$record" | xargs -d '\n' realpath -m --)
  while IFS= read -r source; do
    case $source in "$PWD"/*) ;; *) die "$built_file was built from another checkout: from $source" "$remedy" ;; esac
    [ -e "$source" ] || die "$built_file was built from $source, which is not there any more" "$remedy"
    [ ! "$source" -nt "$built_file" ] || die "$built_file is older than $source" "$remedy"
  done <<< "$sources"
}
built_files=(fdbroker fdbrokerd)
[ -n "$without_libraries" ] || built_files+=(libfdbroker.a libfdbroker_ze.so libfdbroker_cuda.so)
for name in "${built_files[@]}"; do
  [ -f "$built/$name" ] || die "there is no $name in $built" \
    "run cargo build --release --workspace as the user who has Rust; --without-libraries installs the programs alone"
  [ -n "$any_state" ] || check_state "$built/$name"
done

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version *= *"\(.*\)"/\1/p' Cargo.toml)

# ---- install

files=0 installed=()
# place MODE SOURCE TARGET: puts one file in its place in one step; a process that has the old file open keeps it.
place() {
  local mode=$1 source=$2 target=$destdir$3 new
  install -d -m 0755 "${target%/*}" 2> /dev/null && new=$(mktemp "${target%/*}/.install.XXXXXX" 2> /dev/null) ||
    die "cannot write to ${target%/*}" "run as root, or choose another place with --prefix or --destdir"
  pending=$new
  install -m "$mode" "$source" "$new" && mv -fT "$new" "$target" ||
    die "cannot write $target" "is the disk full, or $target a directory?"
  pending=''
  files=$((files + 1)) installed+=("$3")
  say "$target"
}

# place_filled MODE SOURCE TARGET [SED...]: the same for a text file, after these commands of sed.
place_filled() {
  local mode=$1 source=$2 target=$3; shift 3
  sed "$@" "$source" > "$work/filled"
  place "$mode" "$work/filled" "$target"
}

# place_library SOURCE TARGET: the same for a shared library, with its debug information in a file of its own where gdb(1) finds it.
place_library() {
  local source=$1 target=$2 name=${2##*/}.debug
  if [ -n "$keep_debug" ]; then place 0644 "$source" "$target"; return; fi
  objcopy --only-keep-debug "$source" "$work/$name"
  objcopy --strip-unneeded --add-gnu-debuglink="$work/$name" "$source" "$work/stripped"
  place 0644 "$work/stripped" "$target"
  place 0644 "$work/$name" "${target%/*}/.debug/$name"
}

# place_link NAME TARGET: a link to a file in the same directory.
place_link() {
  local link=$destdir$2 new
  new=${link%/*}/.install.link.$$
  pending=$new
  ln -sfn "$1" "$new" && mv -fT "$new" "$link" || die "cannot make the link $link" "is it a directory?"
  pending=''
  installed+=("$2")
  say "$link -> $1"
}

work=$(mktemp -d)
pending=''
trap 'rm -rf "$work"; [ -z "$pending" ] || rm -f "$pending"' EXIT

place 0755 "$built/fdbroker" "$prefix/bin/fdbroker"
place 0755 "$built/fdbrokerd" "$prefix/bin/fdbrokerd"

capi=libclient/capi
if [ -z "$without_libraries" ]; then
  "$capi/link.sh" "$built" || die "the C library cannot be linked; the message is above" "install a C compiler and binutils (package gcc)"
  soname=libfdbroker.so.0
  place_library "$built/capi/$soname" "$libdir/$soname.${version#*.}"
  place_link "$soname.${version#*.}" "$libdir/$soname"
  place_link "$soname" "$libdir/libfdbroker.so"
  if [ -n "$keep_debug" ]; then cp "$built/capi/libfdbroker.a" "$work/"; else objcopy --strip-debug "$built/capi/libfdbroker.a" "$work/libfdbroker.a"; fi
  place 0644 "$work/libfdbroker.a" "$libdir/libfdbroker.a"
  for header in "$capi"/include/*.h; do place 0644 "$header" "$prefix/include/${header##*/}"; done

  private=$(cat "$built/capi/native-libs")
  case $libdir in "$prefix"/*) pc_libdir="\${exec_prefix}${libdir#"$prefix"}" ;; *) pc_libdir=$libdir ;; esac
  place_filled 0644 "$capi/fdbroker.pc.in" "$libdir/pkgconfig/fdbroker.pc" -e '/^#/d' -e "s|@PREFIX@|$prefix|" \
    -e "s|@LIBDIR@|$pc_libdir|" -e "s|@VERSION@|$version|" -e "s|@LIBS_PRIVATE@|$private|"
  cmake=$libdir/cmake/fdbroker include=$(realpath -m -s --relative-to="$libdir/cmake/fdbroker" "$prefix/include")
  for name in fdbroker-config fdbroker-config-version; do
    place_filled 0644 "$capi/$name.cmake.in" "$cmake/$name.cmake" -e '1s/Filled in by .* values\. //' -e "s|@INCLUDE@|$include|" \
      -e "s|@VERSION@|$version|" -e "s|@LIBS_PRIVATE@|${private// /;}|"
  done

  # Near the program, whatever LIBDIR is: `fdbroker run --level-zero` looks there. In a directory of its own, because the directory
  # goes into LD_LIBRARY_PATH, and the loader opens the layer under a name that other layers have, too.
  layer=$prefix/lib/fdbroker/level-zero
  place_library "$built/libfdbroker_ze.so" "$layer/libfdbroker_ze.so"
  place_link libfdbroker_ze.so "$layer/libze_validation_layer.so.1"
  # In the same place: `fdbroker run --cuda` preloads it.
  place_library "$built/libfdbroker_cuda.so" "$prefix/lib/fdbroker/libfdbroker_cuda.so"
fi

# Units contain the paths of their program and documentation.
shopt -s nullglob
in_prefix=(-e "s|/usr/bin/fdbroker|$prefix/bin/fdbroker|g" -e "s|/usr/share/doc|$prefix/share/doc|g")
units=$prefix/lib/systemd/system
for unit in systemd/*.service systemd/*.socket systemd/*.timer; do
  place_filled 0644 "$unit" "$units/${unit##*/}" "${in_prefix[@]}"
done
if [ -z "$systemd" ] && command -v systemctl > /dev/null; then
  systemd=$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
fi
if [ "${systemd:-0}" -ge 254 ]; then
  place 0644 systemd/fdbrokerd-preserve.conf "$units/fdbrokerd.service.d/preserve.conf"
else
  say "systemd ${systemd:-unknown} is older than 254: stopping the service closes the fds in its store"
fi
for name in systemd/sysusers.d/*.conf; do place 0644 "$name" "$prefix/lib/sysusers.d/${name##*/}"; done
for name in systemd/tmpfiles.d/*.conf; do place 0644 "$name" "$prefix/lib/tmpfiles.d/${name##*/}"; done

# The command writes its own manual pages.
"$built/fdbroker" man "$work/man" || die "$built/fdbroker cannot write its manual pages" "its message is above"
for page in "$work"/man/*.[1-8]; do place 0644 "$page" "$prefix/share/man/man${page##*.}/${page##*/}"; done
for shell in bash:bash-completion/completions/fdbroker zsh:zsh/site-functions/_fdbroker fish:fish/vendor_completions.d/fdbroker.fish; do
  "$built/fdbroker" completions "${shell%%:*}" > "$work/completions" || die "$built/fdbroker makes no completions" "its message is above"
  place 0644 "$work/completions" "$prefix/share/${shell#*:}"
done

doc=$prefix/share/doc/fdbroker
place 0644 systemd/README.md "$doc/systemd.md"
place 0644 systemd/fdbrokerd.toml "$doc/examples/fdbrokerd.toml"
for script in systemd/slurm-*.sh; do place 0755 "$script" "$doc/examples/${script##*/}"; done
for manifest in packaging/kubernetes/*; do place 0644 "$manifest" "$doc/examples/kubernetes/${manifest##*/}"; done
place 0644 packaging/selinux/fdbroker.te "$doc/examples/selinux/fdbroker.te"
for text in grafana.json prometheus-rules.yml; do place 0644 "systemd/$text" "$doc/examples/$text"; done
for text in README.md CHANGELOG.md SECURITY.md LICENSE-APACHE LICENSE-MIT libclient/SETTINGS.md libclient/protocol/PROTOCOL.md; do
  if [ -f "$text" ]; then place 0644 "$text" "$doc/${text##*/}"; fi
done
for text in docs/*; do place 0644 "$text" "$doc/$text"; done
for example in "$capi"/examples/*.c libclient/examples/*.rs; do
  place 0644 "$example" "$doc/examples/${example##*/}"
done

# The administrator's file is never replaced, and not in the list of files to remove.
if [ -n "$destdir$is_live" ]; then
  if [ -e "$destdir/etc/fdbroker/fdbrokerd.toml" ]; then
    say "$destdir/etc/fdbroker/fdbrokerd.toml exists: left as it is"
  else
    place 0644 systemd/fdbrokerd.toml /etc/fdbroker/fdbrokerd.toml
    unset 'installed[-1]'
  fi
fi

# Removes files that an earlier version installed and this version does not.
printf '%s\n' "${installed[@]}" | LC_ALL=C sort > "$work/list"
if [ -f "$destdir$list" ]; then
  gone=$(LC_ALL=C sort -u "$destdir$list" | LC_ALL=C comm -13 "$work/list" -)
  [ -z "$gone" ] || remove_listed <<< "$gone"
fi
place 0644 "$work/list" "$list"

if [ -n "$is_live" ] && command -v ldconfig > /dev/null; then
  # The loader does not look in every prefix. Where it does not, programs need LD_LIBRARY_PATH or an rpath.
  ldconfig || say "ldconfig complained; see its message"
  [ ! -f "$libdir/libfdbroker.so.0" ] || ldconfig -p | grep -qF "$libdir/libfdbroker.so.0" ||
    say "the loader does not look in $libdir: add it to /etc/ld.so.conf.d, or set LD_LIBRARY_PATH"
fi
say "$files files of fdbroker $version installed for $prefix${destdir:+, in $destdir}"

# ---- this machine

if [ -n "$is_booted" ]; then
  systemd-sysusers "$prefix/lib/sysusers.d/fdbroker.conf" ||
    die "cannot make the user fdbroker" "systemd-sysusers says why, above"
  systemd-tmpfiles --create "$prefix/lib/tmpfiles.d/fdbroker.conf" ||
    die "cannot make /run/fdbroker and /run/fdbroker-admin" "systemd-tmpfiles says why, above"
  systemctl daemon-reload || die "systemd cannot read its units" "its message is above"
  case $prefix in
    /usr | /usr/local)
      say "to start it now and at every boot: systemctl enable --now fdbrokerd.socket fdbrokerd-admin.socket" ;;
    *)
      say "systemd does not look in $units: link its units with systemctl link, and copy $prefix/lib/{sysusers,tmpfiles}.d to /etc" ;;
  esac
  if systemctl --quiet is-active fdbrokerd.service; then
    say "the service is running; to go on with the new version: systemctl restart fdbrokerd (clients notice nothing)"
  fi
fi
