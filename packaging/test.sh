#!/bin/bash
# Tests the packages, the image and the manifests: their contents, installation and removal in a root of their own, the image's broker in
# containers made by hand, and with --vm the packages as a service with an upgrade under load. Must never touch this machine's own
# packages, users or services.
. "$(dirname "$(readlink -f "$0")")/../tests/common/start.sh"
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
root=$(cd "$here/.." && pwd)
cd "$root" || exit 1

case ${1-} in
  '' | --vm) ;;
  -h | --help)
    cat << 'HELP'
usage: packaging/test.sh [--vm]

Packages the programs of the dev profile with packaging/build.sh and tests what it makes. Needs root and what tests/install.sh installs;
the manifests' schemas come from PyPI and Debian. --vm: instead of all that, a virtual machine tries the package fdbroker as a service, upgrades it
under load and purges it (tests/vm/systemd.sh -p). Ends with `N passed, N failed`. Exit status: 0 all passed, 1 not, 77 cannot run here.
HELP
    exit 0 ;;
  *) echo "packaging/test.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac
cannot() { echo "$1"; exit 77; }
[ "$(id -u)" = 0 ] || cannot "packages: a root of their own needs root; run: sudo packaging/test.sh"
for tool in dh lintian rpmbuild debugedit eu-strip rpmlint mmdebstrap cpio busybox apt-get python3 checkmodule semodule_package; do
  command -v "$tool" > /dev/null || cannot "$tool is not installed; run: sudo tests/install.sh"
done

# Longest wait for a condition.
limit_s=60
work=$(mktemp -d)
chmod 755 "$work"
children=()
cleanup() {
  local pid
  for pid in "${children[@]}"; do kill -9 "$pid" 2> /dev/null; done
  wait 2> /dev/null
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
. "$root/tests/common/checks.sh"
same() { diff <(printf '%s\n' "$1") <(printf '%s\n' "$2"); }
eventually() {
  local end=$((SECONDS + limit_s))
  until "$@" > "$work/last" 2>&1; do
    [ "$SECONDS" -lt "$end" ] || { echo "never: $*"; cat "$work/last"; return 1; }
    sleep 0.05
  done
}
end() { echo "$passed passed, $failed failed"; [ "$failed" = 0 ]; exit; }

programs=$("$root/tests/programs.py") || exit 1
# lintian takes no address of this machine.
export DEBFULLNAME='the fdbroker authors' DEBEMAIL=fdbroker@lists.debian.org
unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET FDBROKER_CONFIG XDG_RUNTIME_DIR DEB_BUILD_OPTIONS
# Without much compression, which takes longer than the rest. rpm reads its macros in the home directory.
export DPKG_DEB_COMPRESSOR_LEVEL=0 HOME=$work/home CARGO_HOME=${CARGO_HOME:-$HOME/.cargo} RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup}
mkdir "$HOME" && echo '%_binary_payload w0.gzdio' > "$HOME/.rpmmacros"
build() { packaging/build.sh --from "$programs" "$@"; }

if [ "${1-}" = --vm ]; then
  for release in 1 2; do
    # An emulated machine takes long to unpack what is compressed.
    DPKG_DEB_COMPRESSOR_TYPE=none DEB_BUILD_OPTIONS=noautodbgsym build deb --release "$release" --output "$work/packages" || exit 1
  done
  exec tests/vm/systemd.sh -s bookworm -p "$work/packages"
fi

# ---- contents

out=$work/packages
check "build.sh: packages for Debian and rpm" build --output "$out"
[ "$failed" = 0 ] || end
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version *= *"\(.*\)"/\1/p' Cargo.toml)
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
deb() { echo "$out/$1_$version-1_$(dpkg --print-architecture).deb"; }
rpm_of() { echo "$out/$1-$version-1.$(rpm --eval '%{_target_cpu}').rpm"; }
names="fdbroker fdbroker-cuda fdbroker-level-zero libfdbroker-dev libfdbroker0"
check "they are those of packaging/packages" same "$names" "$(printf '%s\n' packaging/packages/* | sed 's|.*/||' | xargs)"
rpm_name() { [ "$1" = libfdbroker-dev ] && echo libfdbroker-devel || echo "$1"; }

# files_of_deb NAME, files_of_rpm NAME: what is in it, without what each kind of package has by its own rules.
files_of_deb() {
  dpkg-deb --fsys-tarfile "$(deb "$1")" | tar -t | grep -v '/$' | sed -e 's|^\.||' -e "s|^/lib/systemd|/usr&|" -e "s|/lib/$multiarch/|/lib/|" \
    -e 's|\.gz$||' -e 's|^\(/usr/share/doc/fdbroker\)/changelog$|\1/CHANGELOG.md|' |
    grep -vE "^/usr/share/doc/$1/(copyright|changelog.Debian)$|^/usr/share/lintian" | sort
}
files_of_rpm() {
  rpm -qp --qf '[%{FILEMODES:perms} %{FILENAMES}\n]' "$(rpm_of "$(rpm_name "$1")")" | sed -n 's/^[-l][^ ]* //p' |
    sed -e 's|/lib64/|/lib/|' -e 's|\.gz$||' | grep -vE '/\.build-id|/LICENSE-[A-Z]+$' | sort
}
for name in $names; do
  check "$name: deb and rpm have the same files" same "$(files_of_deb "$name")" "$(files_of_rpm "$name")"
done
check "the service's package has programs, units, manual pages and completions" same "10" "$(files_of_deb fdbroker |
  grep -cxE '/usr/bin/fdbrokerd?|/usr/lib/systemd/system/fdbrokerd(-admin)?.(socket|service)|/usr/share/man/man(1/fdbroker.1|8/fdbrokerd.8)|/etc/fdbroker/fdbrokerd.toml|/usr/lib/(sysusers|tmpfiles).d/fdbroker.conf')"

mkdir "$work/all"
for package in "$out"/*.deb; do dpkg-deb -x "$package" "$work/all"; done
# Each program and library is stripped, and a debug package has its debug information.
has_debug() { [[ $(readelf -SW "$1") == *.debug_info* ]]; }
stripped() {
  local file id status=0
  for file in usr/bin/fdbroker usr/bin/fdbrokerd "usr/lib/$multiarch/libfdbroker.so.0" usr/lib/fdbroker/libfdbroker_cuda.so \
    usr/lib/fdbroker/level-zero/libfdbroker_ze.so; do
    ! has_debug "$1/$file" || { echo "$file is not stripped"; status=1; }
    id=$(readelf -n "$1/$file" | sed -n 's/.*Build ID: //p')
    has_debug "$1/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug" || { echo "$file, build id $id: no debug file"; status=1; }
  done
  return "$status"
}
check "deb: stripped, debug information apart" stripped "$work/all"
mkdir "$work/of-rpm"
for package in "$out"/*.rpm; do (cd "$work/of-rpm" && rpm2cpio "$package" | cpio -idm --quiet); done
mv "$work/of-rpm/usr/lib64" "$work/of-rpm/usr/lib/$multiarch"
check "rpm: stripped, debug information apart" stripped "$work/of-rpm"

# A package outside of Debian closes no bug.
check "lintian" lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "$out"/*.deb
# Linkers of today write the GNU hash alone, and rpm makes shared libraries not executable; the archive is stripped; signature, packager and group are a distribution's.
expected=': E: (missing-hash-section|shared-library-not-executable|static-library-without-debuginfo|no-signature|no-packager-tag|no-group-tag)\b'
no_errors() { local said; said=$(rpmlint "$@" 2>&1); echo "$said"; grep -q 'specfiles checked' <<< "$said" && ! grep ': E: ' <<< "$said" | grep -vE "$expected"; }
check "rpmlint" no_errors "$(rpm_of fdbroker)" "$(rpm_of libfdbroker0)" "$(rpm_of libfdbroker-devel)" "$(rpm_of fdbroker-cuda)" "$(rpm_of fdbroker-level-zero)"
check "rpm -K: whole" rpm -K "$out"/*.rpm

# ---- installation and removal, in a root of Debian 12

images=$(realpath -m "${FDBROKER_VM_IMG:-tests/vm/img}")
check "a root, made by mmdebstrap" tests/vm/build-systemd.sh "$images/systemd-bookworm" bookworm
[ -e "$images/systemd-bookworm/base.cpio" ] || end
# make_root DIR: a fresh one, which keeps documentation.
make_root() {
  mkdir "$1" && (cd "$1" && cpio -idm --quiet < "$images/systemd-bookworm/base.cpio") && rm -f "$1"/etc/dpkg/dpkg.cfg.d/*
}
# inside DIR COMMAND...: in that root, with processes of its own.
inside() {
  local dir=$1; shift
  unshare --mount --pid --fork --kill-child --propagation private -- sh -c \
    'mount -t proc proc "$0/proc" && mount --bind /dev/null "$0/dev/null" && exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"' \
    "$dir" "$@"
}
# tree DIR: every path with its mode, owner and contents, without the package managers' own, logs, and backups of the lists of users.
tree() {
  (cd "$1" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./var/lib/dpkg -o -path ./var/lib/rpm -o -path ./var/log -o -path ./var/cache \
    -o -path ./etc/ld.so.cache -o -path './etc/*-' -o -path ./etc/.pwd.lock -o -path ./packages \) -prune -o \
    \( -type f -printf '%p %m %u ' -exec sha256sum {} \; -o -type l -printf '%p -> %l\n' -o -printf '%p %m %u\n' \) | sort)
}
debian=$work/debian
make_root "$debian"; touch "$debian/dev/null"; mkdir "$debian/packages"
for name in $names; do cp "$(deb "$name")" "$debian/packages/"; done
before=$(tree "$debian")
check "dpkg -i: all of them" inside "$debian" sh -c 'dpkg -i /packages/*.deb'
check "the programs run" same "fdbroker $version fdbrokerd $version" "$(inside "$debian" sh -c 'fdbroker --version; fdbrokerd --version' | xargs)"
check "the loader finds the library" inside "$debian" sh -c "ldconfig -p | grep -q 'libfdbroker.so.0 .*/lib/$multiarch/'"
check "the user is there" grep -q '^fdbroker:' "$debian/etc/passwd"
check "the directories are there" same "fdbroker 755 fdbroker 700" "$(inside "$debian" stat -c '%U %a' /run/fdbroker /run/fdbroker-admin | xargs)"
check "the sockets are enabled, the service is not" same "fdbrokerd-admin.socket fdbrokerd.socket" \
  "$(cd "$debian/etc/systemd/system" && find . -name 'fdbroker*' -printf '%f\n' | sort | xargs)"
check "the example configuration is good" inside "$debian" sh -c 'ulimit -n 1048576; fdbrokerd --check-config'
echo '# of the administrator' >> "$debian/etc/fdbroker/fdbrokerd.toml"
check "dpkg -r: all of them" inside "$debian" dpkg -r $names
check "the configuration stays, with what is enabled, and nothing else" same "./etc/fdbroker/fdbrokerd.toml
./etc/systemd/system/sockets.target.wants/fdbrokerd-admin.socket
./etc/systemd/system/sockets.target.wants/fdbrokerd.socket" "$(cd "$debian" && find . -xdev -path ./var/lib/dpkg -prune -o -name '*fdbroker*' ! -type d ! -path './packages/*' ! -path './var/lib/systemd/*' -print | sort)"
check "dpkg -P: all of them" inside "$debian" dpkg -P $names
check "nothing is left" same "$before" "$(tree "$debian")"
# fixed_uid ROOT: its administrator wants this uid on all nodes. user_of ROOT: with which uid and gid the broker's user was made.
fixed_uid() { mkdir -p "$1/etc/sysusers.d" && echo 'u fdbroker 61100 "The same on all nodes"' > "$1/etc/sysusers.d/fdbroker.conf"; }
user_of() { sed -n 's/^fdbroker:[^:]*:\([0-9]*:[0-9]*\):.*/\1/p' "$1/etc/passwd"; }
fixed_uid "$debian"
check "dpkg -i where the administrator has fixed the uid" inside "$debian" sh -c 'dpkg -i /packages/fdbroker_*.deb'
check "the user and the directories have it" same "61100:61100 61100" "$(user_of "$debian") $(stat -c %u "$debian/run/fdbroker-admin")"

fedora=$work/fedora
make_root "$fedora"; touch "$fedora/dev/null"; fixed_uid "$fedora"
packages=(); for name in $names; do packages+=("$(rpm_of "$(rpm_name "$name")")"); done
by_rpm() { unshare --mount --propagation private -- sh -c 'mount -t proc proc "$0/proc"; mount --bind /dev/null "$0/dev/null"; rpm --root "$0" --dbpath /var/lib/rpm "$@"' "$fedora" "$@"; }
check "rpm --root --initdb" by_rpm --initdb
before=$(tree "$fedora")
# Debian's files are no rpm packages that others could depend on.
check "rpm -i: all of them" by_rpm --nodeps -i "${packages[@]}"
check "rpm -V: as packaged" by_rpm --nodeps -V fdbroker libfdbroker0 libfdbroker-devel fdbroker-cuda fdbroker-level-zero
check "the user is there, with the uid that the administrator has fixed" same 61100:61100 "$(user_of "$fedora")"
check "the directories are there" same "fdbroker 755 fdbroker 700" "$(inside "$fedora" stat -c '%U %a' /run/fdbroker /run/fdbroker-admin | xargs)"
check "the programs run" same "fdbroker $version" "$(inside "$fedora" fdbroker --version)"
scripts=$(rpm -qp --scripts "$(rpm_of fdbroker)")
check "an upgrade restarts the service, unless it refuses its configuration, and no socket" same "1 1 0" \
  "$(grep -c 'try-restart fdbrokerd.service' <<< "$scripts") $(grep -c 'systemctl reload fdbrokerd.service; then' <<< "$scripts") $(grep -c 'restart.*socket' <<< "$scripts")"
# systemctl as it would be on a node; what it was asked is in a file.
fake=$work/fake
mkdir "$fake"
printf '#!/bin/sh\necho "$*" >> "%s/asked"\ncase $* in "reload "*) [ ! -e "%s/refuses" ] ;; esac\n' "$fake" "$fake" > "$fake/systemctl"
cp "$fake/systemctl" "$fake/deb-systemd-invoke"; chmod +x "$fake"/*
dpkg-deb -e "$(deb fdbroker)" "$fake/control"
# What comes before is of debhelper, and would change this machine.
sed -n '/is-active fdbrokerd/,$p' "$fake/control/postinst" > "$fake/postinst"
# upgraded SCRIPT ARGUMENTS...: what a script does at an upgrade with the service of the package.
upgraded() {
  rm -f "$fake/asked"
  unshare --mount --propagation private -- sh -c 'mount -t tmpfs none /run && mkdir -p /run/systemd/system && PATH="$0:$PATH" && exec sh "$@"' \
    "$fake" "$@" > "$fake/said" 2>&1 || { cat "$fake/said"; return 1; }
  grep -E '^(reload|try-restart) fdbrokerd' "$fake/asked" | xargs
}
sed -n '/^postuninstall/,$p' <<< "$scripts" | sed 1d > "$fake/postun"
good="reload fdbrokerd.service try-restart fdbrokerd.service"
check "deb, an upgrade: the new program judges the configuration, then the restart" same "$good" "$(upgraded "$fake/postinst" configure 0.0.1-1)"
check "rpm, the same" same "$good" "$(upgraded "$fake/postun" 1)"
touch "$fake/refuses"
check "deb, a configuration that is refused: the broker that serves is left alone" same "reload fdbrokerd.service" \
  "$(upgraded "$fake/postinst" configure 0.0.1-1)"
check "and that is said" grep -q 'not restarted: mend its configuration' "$fake/said"
check "rpm, the same" same "reload fdbrokerd.service" "$(upgraded "$fake/postun" 1)"
check "rpm -e: all of them" by_rpm --nodeps -e fdbroker libfdbroker0 libfdbroker-devel fdbroker-cuda fdbroker-level-zero
# An rpm package leaves its user, as distributions with rpm want it. Directories of many packages, such as that of manual pages, are
# of a package that this root does not have.
without_user() { grep -vE '^\./etc/(passwd|group|shadow|gshadow) ' | awk 'NF != 3 || /fdbroker/'; }
check "nothing is left but the user" same "$(without_user <<< "$before")" "$(tree "$fedora" | without_user)"

# ---- the image

image=$work/image
check "image/build.sh" packaging/image/build.sh --from "$programs" "$image"
mkdir -p "$work"/node/{run,admin} && chown 61100 "$work"/node/{run,admin} && chmod 700 "$work/node/admin"
# container PROGRAM...: process 1 in a root of its own, as the image's user, with the node's two directories.
container() {
  exec unshare --pid --mount --net --ipc --fork --kill-child --propagation private -- sh -c '
    image=$0 node=$1; shift
    mount --bind "$image" "$image" && mount -o remount,bind,ro "$image"
    mount --bind "$node/run" "$image/run/fdbroker" && mount --bind "$node/admin" "$image/run/fdbroker-admin"
    mount -t proc proc "$image/proc"
    mount -t tmpfs tmpfs "$image/dev" && touch "$image/dev/null" && mount --bind /dev/null "$image/dev/null"
    exec env -i PATH=/usr/sbin:/usr/bin chroot --userspec=61100:61100 "$image" "$@"' "$image" "$work/node" "$@"
}
served_by() { FDBROKER_ADMIN_SOCKET=$work/node/admin/admin.sock "$programs/fdbroker" status --json | grep -o '"pid":[0-9]*'; }
started() { # LOG COMMAND...
  local log=$1; shift
  "$@" < /dev/null > "$log" 2>&1 &
  children+=("$!")
}
init_of() { tr -d ' \n' < "/proc/$1/task/$1/children"; }
export FDBROKER_SOCKET=$work/node/run/broker.sock
started "$work/first.log" container serve
first=$!
check "its broker serves as process of a container: no device, no network, no root" eventually served_by
# probe WHICH: the command of this probe of the manifest, as the kubelet has it run in the container.
probe() {
  local line; line=$(sed -n "/$1:/,/exec:/s/.*exec: {command: \\[\\(.*\\)\\]}/\\1/p" packaging/kubernetes/daemonset.yaml)
  eval "container $(sed 's/, / /g' <<< "$line")"
}
check "the probes of the DaemonSet in another process of it: ready, and alive" eval '(probe readinessProbe) && (probe livenessProbe)'
mkfifo "$work/never"; exec {hold}<> "$work/never"
"$programs/examples/producer" < "$work/never" > "$work/handle" 2> "$work/producer.log" &
children+=("$!")
has_handle() { [ "$(wc -c < "$work/handle")" = 129 ]; }
check "a client outside deposits" eventually has_handle
acquires() { "$programs/examples/consumer" < "$work/handle" | grep ' 0 of them wrong'; }
check "another acquires" acquires
started "$work/second.log" container serve
second=$!
taken_over() { grep 'another broker has taken over' "$work/first.log"; }
check "the container of an upgrade takes over, and the first one waits" eventually taken_over
check "what was deposited before is there" acquires
kill -TERM "$(init_of "$first")"
wait "$first"
check "the first one ends with 0 when it is removed" same 0 $?
check "the second one serves on" acquires
kill -TERM "$(init_of "$second")"
wait "$second"
check "so does the second" same 0 $?
gone() { ! acquires; }
check "then nobody serves" gone
unready() { ! (probe readinessProbe) && ! (probe livenessProbe); }
check "and both probes say so" unready
unset FDBROKER_SOCKET

# ---- manifests and recipes

venv=target/packaging/venv schemas=$work/schemas
requirements() { python3 packaging/manifests.py --requirements; }
with_schemas() {
  [ "$(requirements)" = "$(cat "$venv/requirements" 2> /dev/null)" ] && return
  rm -rf "$venv"
  # shellcheck disable=SC2046
  python3 -m venv "$venv" && "$venv/bin/pip" --quiet --disable-pip-version-check install $(requirements) && requirements > "$venv/requirements"
}
# The schema of the Container Device Interface is in the sources of its Go package.
cdi=golang-github-container-orchestrated-devices-container-device-interface-dev
with_cdi() { mkdir "$schemas" && (cd "$schemas" && apt-get -qq -o APT::Sandbox::User=root download "$cdi" && dpkg-deb -x ./*.deb .); }
check "schemas from PyPI" with_schemas
check "schema of the Container Device Interface" with_cdi
manifest() { "$venv/bin/python" packaging/manifests.py "$(dirname "$(find "$schemas" -name defs.json)")" "$1"; }
refused() { # EXPRESSION FILE: the file, changed by this expression of sed, is refused.
  sed "$1" "$2" > "$work/bad.yaml" && ! cmp "$2" "$work/bad.yaml" && ! manifest "$work/bad.yaml"
}
for file in packaging/kubernetes/*.yaml; do check "${file#packaging/}: as the schemas say" manifest "$file"; done
check "policy.yaml: each rule lets good pods in, and refuses what it is for" "$venv/bin/python" packaging/policy.py
check "a misspelt key is refused: Kubernetes" refused 's/hostPID/hostPid/' packaging/kubernetes/daemonset.yaml
check "a misspelt key is refused: ServiceMonitor" refused 's/bearerTokenFile/bearerToken/' packaging/kubernetes/metrics.yaml
check "a misspelt key is refused: CDI" refused 's/containerPath/path/' packaging/kubernetes/cdi.yaml
check "they name this version of the image" same "fdbroker:$version" "$(grep -hoE 'image: fdbroker:.*' packaging/kubernetes/*.yaml | sort -u | sed 's/image: //')"
check "they name the image's user" same "$(sed -n 's/^USER \(.*\):.*/\1/p' packaging/image/Containerfile)" \
  "$(grep -hoE 'runAsUser: 611[0-9]+' packaging/kubernetes/*.yaml | sort -u | sed 's/.*: //')"
check "the recipe of Spack is Python" python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' packaging/spack/package.py
check "it names this version" grep -q "version(\"$version\")" packaging/spack/package.py
# compiled FILE: as a module of SELinux.
compiled() { (cp "$1" "$work/fdbroker.te" && cd "$work" && checkmodule -M -m -o fdbroker.mod fdbroker.te && semodule_package -o fdbroker.pp -m fdbroker.mod); }
check "the module of SELinux compiles" compiled packaging/selinux/fdbroker.te
sed 's/\(tmpfs_t:file {\) getattr/\1 open/' packaging/selinux/fdbroker.te > "$work/open.te"
not_compiled() { ! compiled "$1"; }
check "and not with a permission that it does not name first" not_compiled "$work/open.te"
crates="-p fdbroker-protocol -p fdbroker-scm -p level-zero-sys -p fdbroker-client"
# shellcheck disable=SC2086
check "cargo package: the crates of the library" cargo package --quiet --no-verify --allow-dirty --target-dir "$work/crates" $crates
check "each is whole" same 4 "$(find "$work/crates/package" -maxdepth 1 -name '*.crate' | wc -l)"
end
