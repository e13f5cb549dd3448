#!/bin/bash
# Builds fdbroker if needed and installs what exists of it: programs, C library, header, pkg-config file, man pages,
# units, documentation; removes it again. Must never leave half a file behind: each is written beside its place and renamed
# into it; nor touch an administrator's configuration.
set -euo pipefail
umask 022

say() { echo "install.sh: $*"; }
die() { echo "install.sh: $1" >&2; shift; for line in "$@"; do echo "  $line" >&2; done; exit 1; }
usage_error() { echo "install.sh: $1 (--help explains)" >&2; exit 2; }

help() {
  cat << 'HELP'
usage: systemd/install.sh [--prefix DIR] [--libdir DIR] [--destdir DIR] [--no-build] [--systemd VERSION]
       systemd/install.sh --uninstall [--prefix DIR] [--libdir DIR] [--destdir DIR]

Builds the release programs and libraries if needed and installs what exists:

  PREFIX/bin               fdbroker, fdbrokerd
  LIBDIR                   libfdbroker.so.0.1.0 with its links .so.0 and .so, libfdbroker.a
  LIBDIR/pkgconfig         fdbroker.pc
  PREFIX/lib/fdbroker/level-zero      libfdbroker_ze.so with its link libze_validation_layer.so.1
  PREFIX/include           fdbroker.h, fdbroker_dl.h
  PREFIX/lib/systemd, lib/sysusers.d, lib/tmpfiles.d      units, which name PREFIX/bin
  PREFIX/share/man, PREFIX/share/doc/fdbroker             man pages; README, licences, examples
  PREFIX/share/bash-completion, zsh, fish                 completions of shells
  PREFIX/share/fdbroker    the list of what was installed
  /etc/fdbroker            fdbrokerd.toml, every key with its default, unless there is one

  --prefix DIR    where it will be used from (default /usr/local)
  --libdir DIR    the libraries' place there (default PREFIX/lib)
  --destdir DIR   put everything under DIR instead of /: for packages and tests; needs no root
  --no-build      install what `cargo build --release --workspace` built before
  --systemd N     the version of systemd it is for (default: this machine's); from 254 on a stop keeps the fd store
  --uninstall     stop the service and remove what was installed; /etc/fdbroker and the user fdbroker stay

As root and without --destdir it also makes the user and the directories, and has systemd read the units; it starts
nothing. Running it again is harmless; running programs keep the file they have open. CARGO_TARGET_DIR is respected.
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

prefix=/usr/local libdir='' destdir='' build=yes systemd='' uninstall=''
while [ $# -gt 0 ]; do
  case $1 in
    --prefix=* | --libdir=* | --destdir=* | --systemd=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
    --prefix | --libdir | --destdir)
      [ $# -ge 2 ] || usage_error "$1 needs a directory"
      case $1 in
        --destdir) destdir=$(absolute "$1" "$2") ;;
        --prefix) prefix=$2 ;;
        --libdir) libdir=$2 ;;
      esac
      shift 2 ;;
    --systemd)
      [[ ${2-} =~ ^[0-9]{1,4}$ ]] || usage_error "--systemd needs a version, such as 252"
      systemd=$2; shift 2 ;;
    --no-build) build=no; shift ;;
    --uninstall) uninstall=yes; shift ;;
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
# What is done to this machine itself, not only to files.
is_live=''
if [ -z "$destdir" ] && [ "$(id -u)" = 0 ]; then is_live=yes; fi
is_booted=''
if [ -n "$is_live" ] && [ -d /run/systemd/system ]; then is_booted=yes; fi
list=$prefix/share/fdbroker/installed

# ---- uninstall

# remove_listed: removes the paths that it reads, and the directories that are empty then.
remove_listed() {
  local path
  while IFS= read -r path; do
    # Only what lies under the prefix: a list is a file like any other, and may have been damaged.
    case $path in "$prefix"/*) ;; "$libdir"/*) ;; *) say "not removed: $path"; continue ;; esac
    case $path in */../*) continue ;; esac
    [ -e "$destdir$path" ] || [ -L "$destdir$path" ] || continue
    rm -f "$destdir$path" || die "cannot remove $destdir$path" "run as root"
    # The directories that are empty now, up to the prefix.
    (cd "$destdir$prefix" && rmdir -p --ignore-fail-on-non-empty "$(dirname "${path#"$prefix"/}")") 2> /dev/null || true
  done
}

if [ -n "$uninstall" ]; then
  [ -f "$destdir$list" ] || die "nothing is installed: there is no $destdir$list" \
    "name the --prefix, --libdir and --destdir it was installed with"
  if [ -n "$is_booted" ]; then
    systemctl disable --now --quiet fdbrokerd.socket fdbrokerd-admin.socket fdbrokerd.service ||
      say "systemctl complained; see its message"
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

files=0 installed=()
# place MODE SOURCE TARGET: one file, in place in one step, so that who has the old one open keeps it.
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
  installed+=("$2")
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

# Units name their program and documentation by their place.
shopt -s nullglob
in_prefix=(-e "s|/usr/bin/fdbroker|$prefix/bin/fdbroker|g" -e "s|/usr/share/doc|$prefix/share/doc|g")
units=$prefix/lib/systemd/system
for unit in systemd/*.service systemd/*.socket; do
  place_filled 0644 "$unit" "$units/${unit##*/}" "${in_prefix[@]}"
done
if [ -z "$systemd" ] && command -v systemctl > /dev/null; then
  systemd=$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
fi
if [ "${systemd:-0}" -ge 254 ]; then
  place 0644 systemd/fdbrokerd-preserve.conf "$units/fdbrokerd.service.d/preserve.conf"
else
  say "systemd ${systemd:-unknown} is older than 254: stopping the service gives up what its fd store keeps"
fi
for name in systemd/sysusers.d/*.conf; do place 0644 "$name" "$prefix/lib/sysusers.d/${name##*/}"; done
for name in systemd/tmpfiles.d/*.conf; do place 0644 "$name" "$prefix/lib/tmpfiles.d/${name##*/}"; done

# From the command's own definition.
"$built/fdbroker" man "$work/man" || die "$built/fdbroker cannot write its manual pages" "its message is above"
for page in "$work"/man/*.[1-8]; do place 0644 "$page" "$prefix/share/man/man${page##*.}/${page##*/}"; done
for shell in bash:bash-completion/completions/fdbroker zsh:zsh/site-functions/_fdbroker fish:fish/vendor_completions.d/fdbroker.fish; do
  "$built/fdbroker" completions "${shell%%:*}" > "$work/completions" || die "$built/fdbroker makes no completions" "its message is above"
  place 0644 "$work/completions" "$prefix/share/${shell#*:}"
done

doc=$prefix/share/doc/fdbroker
place 0644 systemd/README.md "$doc/systemd.md"
place 0644 systemd/fdbrokerd.toml "$doc/examples/fdbrokerd.toml"
place 0755 systemd/slurm-epilog.sh "$doc/examples/slurm-epilog.sh"
place 0644 systemd/grafana.json "$doc/examples/grafana.json"
for text in README.md CHANGELOG.md SECURITY.md LICENSE-APACHE LICENSE-MIT libclient/SETTINGS.md libclient/protocol/PROTOCOL.md; do
  if [ -f "$text" ]; then place 0644 "$text" "$doc/${text##*/}"; fi
done
for text in docs/*; do place 0644 "$text" "$doc/$text"; done
for example in "$capi"/examples/*.c libclient/examples/*.rs; do
  place 0644 "$example" "$doc/examples/${example##*/}"
done

# The administrator's file is never replaced, nor listed for removal.
if [ -n "$destdir$is_live" ]; then
  if [ -e "$destdir/etc/fdbroker/fdbrokerd.toml" ]; then
    say "$destdir/etc/fdbroker/fdbrokerd.toml is there already: left as it is"
  else
    place 0644 systemd/fdbrokerd.toml /etc/fdbroker/fdbrokerd.toml
    unset 'installed[-1]'
  fi
fi

# What an earlier version installed and this one does not goes away.
printf '%s\n' "${installed[@]}" | LC_ALL=C sort > "$work/list"
if [ -f "$destdir$list" ]; then
  gone=$(LC_ALL=C sort -u "$destdir$list" | LC_ALL=C comm -13 "$work/list" -)
  [ -z "$gone" ] || remove_listed <<< "$gone"
fi
place 0644 "$work/list" "$list"

if [ -n "$is_live" ] && command -v ldconfig > /dev/null; then
  # Not every prefix is in the loader's configuration; programs then need LD_LIBRARY_PATH or an rpath.
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
      say "systemd does not look in $units: systemctl link its units, and copy $prefix/lib/{sysusers,tmpfiles}.d to /etc" ;;
  esac
  if systemctl --quiet is-active fdbrokerd.service; then
    say "it is running: systemctl restart fdbrokerd goes on with the new version; clients notice nothing"
  fi
fi
