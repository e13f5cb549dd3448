#!/bin/bash
# Builds the guest of tests/vm/run.sh -s SUITE once: DIR/base.cpio, a small Debian with systemd, its udev left out.
# Usage: build-systemd.sh DIR SUITE; run.sh calls it by itself. It never touches the host's packages, and never replaces
# an image that is already complete.
set -euo pipefail
umask 022

die() { echo "build-systemd.sh: $1" >&2; shift; for line in "$@"; do echo "  $line" >&2; done; exit 1; }

[ $# = 2 ] && [ "${1#-}" = "$1" ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
image=$1 suite=$2
[ -s "$image/base.cpio" ] && exit 0
here=$(dirname "$(readlink -f "$0")")
store=$(dirname "$image")
mkdir -p "$store" 2> /dev/null && [ -w "$store" ] ||
  die "cannot write to $store" "set FDBROKER_VM_IMG to a folder of your own (400 MB while it is built)"

# One builder at a time, as in build-image.sh; another lock, because the kernel's image is built before.
exec 9> "$store/.lock-$suite"
flock 9
[ -s "$image/base.cpio" ] && exit 0
rm -rf "$store/.build-$suite".*
work=$(mktemp -d "$store/.build-$suite.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
mkdir "$work/new"
# The package manager's own user reads here.
chmod 755 "$work" "$work/new"
echo "build-systemd.sh: first use: fetching a small Debian $suite with systemd (once)" >&2

mirrors() { apt-get "$@" indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Component: main' | sed -n 1p; }
mirror=$(mirrors)
if [ -z "$mirror" ]; then
  # The host's package lists are absent; private ones leave the host as it is.
  mkdir -p "$work/lists/partial"
  lists=(-o "Dir::State::Lists=$work/lists" -o Acquire::Languages=none)
  apt-get -qq "${lists[@]}" update < /dev/null > "$work/log" 2>&1 9>&- || true
  mirror=$(mirrors "${lists[@]}")
fi
[ -n "$mirror" ] || die "apt knows no mirror that carries bookworm" "check /etc/apt/sources.list*, then: apt-get update"

# The guest has no use for these; each would cost time at an emulated boot.
masked="getty.target getty@tty1.service serial-getty@ttyS0.service apt-daily.timer apt-daily-upgrade.timer
  dpkg-db-backup.timer fstrim.timer e2scrub_all.timer e2scrub_reap.service systemd-timesyncd.service systemd-logind.service
  systemd-update-utmp.service systemd-update-utmp-runlevel.service systemd-networkd.service systemd-pcrphase.service
  systemd-pcrphase-sysinit.service systemd-tpm2-setup.service systemd-tpm2-setup-early.service
  systemd-hwdb-update.service ldconfig.service"

cat > "$work/customize" << 'HOOK'
#!/bin/bash
# Runs with the finished root as $1, as its root user, whichever user runs mmdebstrap.
set -euo pipefail
root=$1
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{i18n,bash-completion,perl} \
  "$root"/usr/lib/x86_64-linux-gnu/gconv
echo vm > "$root/etc/hostname"
echo 5f0e5f0e5f0e5f0e5f0e5f0e5f0e5f0e > "$root/etc/machine-id"
ln -sf lib/systemd/systemd "$root/init"
mkdir -p "$root/t" "$root/vm"
install -m 0755 "$HERE/guest-systemd" "$root/usr/local/bin/guest-systemd"
cat > "$root/etc/systemd/system/guest.service" << 'UNIT'
[Unit]
After=basic.target dbus.socket
[Service]
Type=oneshot
ExecStart=/usr/local/bin/guest-systemd
ExecStopPost=/usr/bin/systemctl poweroff --force --force
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
UNIT
chroot "$root" systemctl -q enable guest.service
for unit in $MASKED; do ln -sf /dev/null "$root/etc/systemd/system/$unit"; done
cd "$root"
find . -xdev -not -path './proc/*' -not -path './sys/*' -not -path './dev/*' | cpio --quiet -o -H newc > "$OUT"
HOOK
chmod 755 "$work/customize"
# Without root, mmdebstrap's hooks run as the root of a user namespace, which is another user outside of it.
: > "$work/new/base.cpio"
chmod 666 "$work/new/base.cpio"
HERE=$here MASKED=$(xargs <<< "$masked") OUT=$work/new/base.cpio mmdebstrap --quiet --variant=minbase --format=null \
  --include=systemd,systemd-sysv,dbus,procps --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --customize-hook="$work/customize \"\$1\"" "$suite" /dev/null "deb $mirror $suite main" < /dev/null \
  > "$work/log" 2>&1 9>&- || { tail -n 30 "$work/log" >&2; die "mmdebstrap could not make a root of $suite" \
  "its message is above; without root it needs the package uidmap, and lines for the user in /etc/subuid and /etc/subgid"; }
[ -s "$work/new/base.cpio" ] || die "mmdebstrap made an empty root" "$(tail -n 3 "$work/log")"

chmod 644 "$work/new/base.cpio"
rm -rf "$image" # at most an incomplete one, or it would have been taken above
mv -T "$work/new" "$image"
echo "build-systemd.sh: $image: $(du -sh "$image" | cut -f1)" >&2
