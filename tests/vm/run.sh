#!/bin/bash
# Runs one program in a throw-away virtual machine whose kernel has real dma-bufs (udmabuf, dma-heap).
# It never needs KVM, never shares a folder with the guest, and never prints to stdout anything but the program's
# own stdout. run.sh -h explains.
set -euo pipefail
umask 022

usage() {
  cat << 'HELP'
usage: tests/vm/run.sh [options] PROGRAM [ARGS...]

Boots a small Linux under QEMU (about 3 s, emulated: no KVM), runs PROGRAM in it and goes away again. PROGRAM's
stdout, stderr and exit status come out as if it had run here; its stdin is empty.

  tests/vm/run.sh target/release/fdbroker demo --memory udmabuf --ranks 4 --json
  tests/vm/run.sh ls -l /dev/udmabuf /dev/dma_heap        a busybox command of the guest, no file needed
  tests/vm/run.sh -f data.json ./check.sh data.json       a script (for #!/bin/sh: busybox) and a file it reads
  tests/vm/run.sh -u 65534 -e RUST_LOG=debug ./program    as nobody, with a variable

PROGRAM is a file of this machine. It is copied to /t, the guest's current folder, together with the shared
libraries that ldd names for it. Nothing else of this machine is visible in the guest, and nothing comes back
but the two outputs and the exit status.

  -m MiB         memory of the guest (1024)
  -c CPUS        processors of the guest (1: side by side, emulated ones mostly wait for each other)
  -t SECONDS     time limit, boot included (300)
  -f FILE        also copy FILE to /t; may be repeated
  -e NAME=VALUE  environment variable for PROGRAM; may be repeated. It starts with PATH, HOME, USER and SHELL only.
  -u UID         run PROGRAM as this user (0); /dev/udmabuf and /dev/dma_heap/* are open to all
  -k KERNEL      6.12 (default: udmabuf and dma-heap) or 6.1, the stock kernel of Debian 12 (neither; dma-bufs of vgem alone)
  -s SUITE       a guest with systemd as process 1 and a small Debian SUITE (bookworm: systemd 252, trixie: 257) instead
                 of busybox; PROGRAM is then also any command of it, a script may want /bin/bash, and no library travels
  -v             kernel console on stderr
  -h             this text

exit status    PROGRAM's, or
  124          the time limit passed            125  the VM died; the end of its console is on stderr
  1            this host lacks something        2    wrong usage (both before PROGRAM starts; stderr has the reason)

The first use of each kernel fetches it through apt into tests/vm/img (another place: FDBROKER_VM_IMG=DIR). To take a newer
kernel, remove that folder.
HELP
}
die() { local code=$1; echo "run.sh: $2" >&2; shift 2; for line in "$@"; do echo "  $line" >&2; done; exit "$code"; }
number() { # OPTION VALUE LEAST MOST
  [[ $2 =~ ^[0-9]{1,10}$ ]] && [ "$((10#$2))" -ge "$3" ] && [ "$((10#$2))" -le "$4" ] ||
    die 2 "$1 takes a number from $3 to $4, not '$2'"
}

here=$(dirname "$(readlink -f "$0")")
memory=1024 cpus=1 limit=300 uid=0 kernel=6.12 suite='' verbose='' files=() variables=()
[ "${1-}" != --help ] || { usage; exit 0; }
while getopts :m:c:t:f:e:u:k:s:vh option; do
  case $option in
    m) number -m "$OPTARG" 128 1048576; memory=$((10#$OPTARG)) ;;
    c) number -c "$OPTARG" 1 64; cpus=$((10#$OPTARG)) ;;
    t) number -t "$OPTARG" 1 86400; limit=$((10#$OPTARG)) ;;
    u) number -u "$OPTARG" 0 4294967294; uid=$((10#$OPTARG)) ;;
    f) files+=("$OPTARG") ;;
    e) [[ $OPTARG =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || die 2 "-e takes NAME=VALUE, not '$OPTARG'"
       variables+=("$OPTARG") ;;
    k) case $OPTARG in 6.12 | 6.1) kernel=$OPTARG ;; *) die 2 "-k takes 6.12 or 6.1, not '$OPTARG'" ;; esac ;;
    s) case $OPTARG in bookworm | trixie) suite=$OPTARG ;; *) die 2 "-s takes bookworm or trixie, not '$OPTARG'" ;; esac ;;
    v) verbose=yes ;;
    h) usage; exit 0 ;;
    :) die 2 "option -$OPTARG needs a value (-h explains)" ;;
    *) die 2 "unknown option -$OPTARG (-h explains; options of the program go after it)" ;;
  esac
done
shift $((OPTIND - 1))
[ -z "$suite" ] || [ "$kernel" = 6.12 ] || die 2 "-s needs the kernel 6.12: the guests with systemd load no modules"
[ $# -gt 0 ] || die 2 "which program?" "for instance: tests/vm/run.sh ls -l /dev/udmabuf      (-h explains)"

# --- host and image -----------------------------------------------------------------------------------------------
for tool in qemu-system-x86_64 busybox cc cpio xz zstd ${suite:+mmdebstrap}; do
  command -v "$tool" > /dev/null && continue
  [ "$(id -u)" = 0 ] || die 1 "this host has no $tool" "run: sudo tests/install.sh"
  "$here/../install.sh" >&2 || die 1 "the host is not ready (see above)"
  break
done
image=$(realpath -m "${FDBROKER_VM_IMG:-$here/img}")
case $kernel in 6.12) image+=/cloud ;; *) image+=/stock-$kernel ;; esac
"$here/build-image.sh" "$image" "$kernel" >&2 || die 1 "there is no guest to start (see above)"
base=$image
if [ -n "$suite" ]; then
  base=${image%/*}/systemd-$suite
  "$here/build-systemd.sh" "$base" "$suite" >&2 || die 1 "there is no guest to start (see above)"
fi

# --- what travels -------------------------------------------------------------------------------------------------
program=$1
shift
work=$(mktemp -d)
qemu='' tails=()
cleanup() {
  if [ -n "$qemu" ]; then kill "$qemu" 2> /dev/null && wait "$qemu" || true; fi
  if [ ${#tails[@]} -gt 0 ]; then kill "${tails[@]}" 2> /dev/null || true; fi
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

overlay=$work/overlay
mkdir -p "$overlay/t" "$overlay/vm"
chmod 1777 "$overlay/t"
library_path=''
carry() { # FILE: into /t, and the libraries it needs to where they are here
  local name library folder
  name=$(basename "$1")
  [ -f "$1" ] && [ -r "$1" ] || die 2 "cannot read the file $1"
  [ ! -e "$overlay/t/$name" ] || die 2 "two files are named $name; in the guest they would share one folder"
  cp -L "$1" "$overlay/t/$name"
  chmod 755 "$overlay/t/$name"
  # The systemd guest has a C library of its own, of this age or newer, and a folder here would replace a link there.
  [ -z "$suite" ] || return 0
  ldd "$1" > "$work/libraries" 2> /dev/null || return 0 # a script, a static program, or no program at all
  if grep -q 'not found' "$work/libraries"; then
    die 1 "libraries of $1 are missing on this host too:" "$(grep 'not found' "$work/libraries" | xargs)"
  fi
  while read -r library; do
    folder=$(dirname "$library")
    mkdir -p "$overlay$folder"
    cp -Lu "$library" "$overlay$library"
    case $folder in # the guest has no loader cache: name the folders that the loader would not search
      /lib | /lib64 | /usr/lib | /usr/lib64 | /lib/x86_64-linux-gnu | /usr/lib/x86_64-linux-gnu) ;;
      *) case :$library_path: in *":$folder:"*) ;; *) library_path=${library_path:+$library_path:}$folder ;; esac ;;
    esac
  done < <(grep -o '/[^ ]*' "$work/libraries")
}
if [ -f "$program" ]; then
  carry "$program"
  command=./$(basename "$program")
  if [ -z "$suite" ] && [ "$(head -c 2 "$program" | tr -d '\0')" = '#!' ]; then
    interpreter=$(sed -n '1s/^#! *\([^ ]*\).*/\1/p' "$program")
    case $interpreter in
      /bin/* | /sbin/* | /usr/bin/* | /usr/sbin/*) grep -qx "$(basename "$interpreter")" "$image/applets" ;;
      *) false ;;
    esac || die 2 "$program wants $interpreter, which the guest does not have" "write it for #!/bin/sh (busybox)"
  fi
elif [ "${program#*/}" = "$program" ] && { [ -n "$suite" ] || grep -qx -e "$program" "$image/applets"; }; then
  command=$program
else
  die 2 "no such program: $program" "a program of this workspace is built with: cargo build --release"
fi
for file in ${files[@]+"${files[@]}"}; do carry "$file"; done

user=root home=/root
case $uid in
  0) ;;
  65534) user=nobody home=/ ;;
  *) user=u$uid home=/ ;;
esac
if [ -z "$suite" ]; then
  mkdir "$overlay/etc"
  printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' > "$overlay/etc/passwd"
  printf 'root:x:0:\nnogroup:x:65534:\n' > "$overlay/etc/group"
  case $user in
    u*) echo "$user:x:$uid:$uid::/:/bin/sh" >> "$overlay/etc/passwd"
        echo "$user:x:$uid:" >> "$overlay/etc/group" ;;
  esac
fi

quoted() { local q="'\\''"; printf "'%s' " "${1//\'/$q}"; }
{
  # Soft limit as on any host, hard limit high: the program may raise its own.
  echo "ulimit -Sn 1024; ulimit -Hn 65536"
  if [ "$uid" = 0 ]; then
    echo "exec sh /vm/program"
  elif [ -n "$suite" ]; then
    echo "exec setpriv --reuid $uid --regid $uid --clear-groups sh /vm/program"
  else
    echo "exec su -s /bin/sh -c 'exec sh /vm/program' $user"
  fi
} > "$overlay/vm/start"
{
  printf 'exec env -i PATH=%s HOME=%s USER=%s SHELL=/bin/sh ' \
    "${suite:+/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:}/bin:/t" "$home" "$user"
  [ -z "$library_path" ] || quoted "LD_LIBRARY_PATH=$library_path"
  for word in ${variables[@]+"${variables[@]}"} "$command" "$@"; do quoted "$word"; done
  echo
} > "$overlay/vm/program"
if [ -z "$suite" ]; then
  cp "$here/guest-init" "$overlay/init"
  chmod 755 "$overlay/init"
fi
(cd "$overlay" && find . -mindepth 1 | cpio --quiet -o -H newc -R 0:0) | cat "$base/base.cpio" - > "$work/initrd"

# --- the machine --------------------------------------------------------------------------------------------------
# Outputs go through plain files, which never make the guest wait: bytes still on their way in the guest's queue
# when it powers off cannot be lost to a slow reader here.
: > "$work/out"; : > "$work/err"; : > "$work/status"; : > "$work/console"
append="console=ttyS0 rdinit=/init panic=-1 nokaslr mitigations=off random.trust_cpu=on no_timer_check tsc=reliable"
if [ -n "$verbose" ]; then append+=" ignore_loglevel"; else append+=" quiet"; fi
[ -z "$suite" ] || append+=" systemd.show_status=0"
# The guest would measure the counter by a timer of QEMU's; on a host with much to do its clock then runs several times
# too fast, and every time limit in it is over too soon.
cc -O2 -o "$work/tsc" "$here/tsc.c"
append+=" tsc_early_khz=$("$work/tsc")"
machine=(-accel tcg,thread=multi -machine pc -cpu max,la57=off -smp "$cpus" -m "$memory"
  -nodefaults -no-user-config -no-reboot -display none
  -kernel "$image/kernel" -initrd "$work/initrd" -append "$append"
  -chardev "file,id=console,path=$work/console,append=on" -serial chardev:console
  -device virtio-serial-pci)
for name in out err status; do
  machine+=(-chardev "file,id=$name,path=$work/$name,append=on" -device "virtserialport,chardev=$name,name=$name")
done
timeout -k 5 "$limit" qemu-system-x86_64 "${machine[@]}" < /dev/null > "$work/qemu" 2>&1 &
qemu=$!
follow() { tail -c +1 -s 0.05 --pid="$qemu" -f "$1" 2> /dev/null; } # ends, after the last byte, when the machine does
follow "$work/out" &
tails+=($!)
follow "$work/err" >&2 &
tails+=($!)
if [ -n "$verbose" ]; then follow "$work/console" >&2 & tails+=($!); fi

code=0
SECONDS=0
wait "$qemu" || code=$?
qemu=''
wait "${tails[@]}" || true
tails=()

console_end() { # LINES
  cat "$work/qemu" >&2
  [ -n "$verbose" ] || tail -n "$1" "$work/console" | tr -d '\r' >&2
}
if [ -s "$work/status" ]; then
  if grep -q 'Out of memory: Killed' "$work/console"; then
    echo "run.sh: the guest ran out of memory and killed something; give it more than -m $memory" >&2
  fi
  exit "$(tr -dc 0-9 < "$work/status")"
fi
if [ "$code" = 124 ] || { [ "$code" = 137 ] && [ "$SECONDS" -ge "$limit" ]; }; then # 137: QEMU had to be killed
  echo "run.sh: not finished after $limit s (-t gives more); end of the console:" >&2
  console_end 20
  exit 124
fi
echo "run.sh: the VM died (QEMU's exit status: $code); end of the console:" >&2
console_end 60
exit 125
