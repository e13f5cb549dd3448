#!/bin/bash
# Builds the guest of tests/vm/run.sh once: DIR/kernel (an uncompressed Linux: 6.12 with udmabuf and dma-heap built in, or the
# stock 6.1 of Debian 12) and DIR/base.cpio (a busybox userland, and the modules that the kernel needs there).
# Usage: build-image.sh DIR [6.12|6.1]; run.sh calls it by itself.
# It never installs the kernel, needs no root, and never replaces an image that is already complete.
set -euo pipefail
umask 022

die() { echo "build-image.sh: $1" >&2; shift; for line in "$@"; do echo "  $line" >&2; done; exit 1; }

[ $# -ge 1 ] && [ $# -le 2 ] && [ "${1#-}" = "$1" ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
image=$1 kernel=${2:-6.12}
case $kernel in
  6.12) # built in is all that a guest needs
    meta=linux-image-6.12-cloud-amd64 built_in="UDMABUF DMABUF_HEAPS DMABUF_HEAPS_SYSTEM VIRTIO_PCI VIRTIO_CONSOLE" modules="" ;;
  6.1) # no udmabuf and no dma-heap in any form; the one exporter of dma-bufs without hardware is vgem
    meta=linux-image-amd64 built_in="MEMFD_CREATE KCMP" modules="virtio_pci virtio_console fuse vgem" ;;
  *) die "there is no guest with Linux $kernel" "it is 6.12 or 6.1" ;;
esac
[ -s "$image/kernel" ] && exit 0
store=$(dirname "$image")
mkdir -p "$store" 2> /dev/null && [ -w "$store" ] ||
  die "cannot write to $store" "set FDBROKER_VM_IMG to a folder of your own (60 MB; 700 MB while it is built)"

# The first of several concurrent builders works, the others wait and find the result. A file with a builder's name is
# left from a builder that was killed, since this one holds the lock.
exec 9> "$store/.lock"
flock 9
[ -s "$image/kernel" ] && exit 0
rm -rf "$store"/.build.*
work=$(mktemp -d "$store/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/deb" "$work/new" "$work/root"
echo "build-image.sh: first use: fetching a guest kernel through apt (once)" >&2

# --- kernel -------------------------------------------------------------------------------------------------------
apt=(-qq -o APT::Sandbox::User=root)
fetch() { # downloads the kernel package that $meta stands for, with the options in $apt
  local package
  package=$(apt-cache "${apt[@]}" depends --important "$meta" 2> /dev/null |
    sed -n "s/^ *Depends: \\(linux-image-${kernel//./[.]}[.+].*\\)/\\1/p" | sed -n 1p)
  [ -n "$package" ] && (cd "$work/deb" && apt-get "${apt[@]}" download "$package" < /dev/null >&2 9>&-)
}
if ! fetch 2> /dev/null; then
  # The host's package lists are absent or old. Private ones leave the host as it is, and need no root.
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  apt+=(-o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o Acquire::Languages=none)
  apt-get "${apt[@]}" update < /dev/null > "$work/log" 2>&1 9>&- || true
  fetch || { cat "$work/log" >&2; die "apt offers no $meta" \
    "it lives in Debian 12's security suite: check that /etc/apt/sources.list* has bookworm-security"; }
fi
dpkg-deb --fsys-tarfile "$work"/deb/*.deb | tar -x -C "$work/deb" ./boot ${modules:+./lib/modules}
bzimage=$(echo "$work"/deb/boot/vmlinuz-*)
config=$(echo "$work"/deb/boot/config-*)
for option in $built_in; do
  grep -qx "CONFIG_$option=y" "$config" || die "the kernel $(basename "$bzimage") has CONFIG_$option not built in"
done

# A bzImage unpacks itself at boot, which is slow when every instruction is emulated. Its setup header says where
# the packed ELF kernel lies; QEMU can start that one directly (PVH entry).
header() { od -An -v -t"u$2" -j"$1" -N"$2" "$bzimage" | tr -d ' '; } # unsigned, OFFSET SIZE
start=$((($(header $((0x1f1)) 1) + 1) * 512 + $(header $((0x248)) 4)))
length=$(header $((0x24c)) 4)
packed=$work/packed
tail -c "+$((start + 1))" "$bzimage" | head -c "$length" > "$packed" || true
magic=$(od -An -v -tx1 -N4 "$packed" | tr -d ' ')
case $magic in # all but gzip are followed by four bytes, the unpacked size
  28b52ffd) head -c -4 "$packed" | zstd -dcq > "$work/new/kernel" ;;
  fd377a58) head -c -4 "$packed" | xz -dc > "$work/new/kernel" ;;
  1f8b*) gzip -dc < "$packed" > "$work/new/kernel" ;;
  *) die "$(basename "$bzimage") is packed in a way this script does not know (it begins with $magic)" ;;
esac
[ "$(head -c 4 "$work/new/kernel" | tail -c 3)" = ELF ] || die "what came out of $(basename "$bzimage") is no ELF kernel"
basename "$bzimage" | sed 's/^vmlinuz-//' > "$work/new/version"

# --- userland -----------------------------------------------------------------------------------------------------
root=$work/root
mkdir -p "$root"/{bin,dev,etc,lib,lib64,proc,root,run,sys,tmp,usr,vm}
for alias in sbin usr/bin usr/sbin; do ln -s /bin "$root/$alias"; done
busybox=$(command -v busybox)
cp -L "$busybox" "$root/bin/busybox"
ldd "$busybox" > "$work/libraries" 2> /dev/null || : > "$work/libraries" # nothing, if it is the static one
{ grep -o '/[^ ]*' "$work/libraries" || true; } | while read -r library; do
  mkdir -p "$root$(dirname "$library")"
  cp -L "$library" "$root$library"
done
busybox --list > "$work/new/applets"
while read -r applet; do
  if [ "$applet" != busybox ]; then ln -sf busybox "$root/bin/$applet"; fi
done < "$work/new/applets"

# The modules in the order in which they are loaded, each after the modules that it depends on. guest-init loads them.
mkdir "$root/modules"
take() { # MODULE...
  local module file depends
  for module in "$@"; do
    [ ! -e "$root/modules/$module.ko" ] || continue
    file=$(find "$work/deb/lib/modules" -name "${module//_/[_-]}.ko" | sed -n 1p)
    [ -n "$file" ] || die "$(basename "$bzimage") has no module $module"
    depends=$(tr '\0' '\n' < "$file" | sed -n 's/^depends=//p' | tr ',-' ' _')
    # The names are a list of words.
    # shellcheck disable=SC2086
    take $depends
    cp "$file" "$root/modules/$module.ko"
    echo "$module" >> "$root/modules/order"
  done
}
# shellcheck disable=SC2086
take $modules
(cd "$root" && find . -mindepth 1 | cpio --quiet -o -H newc -R 0:0) > "$work/new/base.cpio"

rm -rf "$image" # at most an incomplete one, or it would have been taken above
mv -T "$work/new" "$image"
echo "build-image.sh: $image: Linux $(cat "$image/version"), $(du -sh "$image" | cut -f1)" >&2
