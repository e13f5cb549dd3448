#!/bin/bash
# What a release must be, beyond what tests/run.sh tests: crates that stand alone, licences, a build without a network, aarch64, an
# upgrade from a version before. Ends with `N passed, N failed`. Must never publish anything, nor build in the tree's own target folder.
. "$(dirname "$(readlink -f "$0")")/common/start.sh"
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

case ${1-} in
  '' | crates | vendored | aarch64 | upgrade) ;;
  -h | --help)
    cat << 'HELP'
usage: tests/release.sh [crates | vendored | aarch64 | upgrade]

Some half an hour on two cores, by hand before a release; a word runs one part:
  crates     the public items of the library beside tests/release/public.txt; the four crates for crates.io are packaged together and built from their archives, outside this tree too; each has its
             readme and licence texts; licences and origins of all crates
  vendored   `cargo vendor`, then the programs and libraries are built without a network
  upgrade    Debian's packages of the commit that this script names as UPGRADE_FROM, and of this one: a virtual machine upgrades from the
             first to the second under load (tests/vm/systemd.sh -p); needs root
  aarch64    programs and libraries are built for aarch64, and the units of protocol, scm, the core and the bindings run under
             qemu-user; needs Rust's library for aarch64, which rustup brings

What is missing is installed first, as root (tests/install.sh release). What is packed is what git has: commit first. Builds are in a folder that is removed (TMPDIR).
HELP
    exit 0 ;;
  *) echo "tests/release.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac
part=${1-} passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CARGO_TARGET_DIR=$work/target CARGO_INCREMENTAL=0
check() { # NAME COMMAND...
  local name=$1; shift
  if "$@" > "$work/log" 2>&1; then passed=$((passed + 1)); echo "ok      $name"
  else failed=$((failed + 1)); echo "FAILED  $name"; tail -n 30 "$work/log" | sed 's/^/        /'; fi
}
wanted() { [ -z "$part" ] || [ "$part" = "$1" ]; }

# What is missing is said before half an hour of building.
target=aarch64-unknown-linux-gnu
if wanted aarch64 || wanted upgrade; then tests/install.sh release || exit 1; fi
if wanted aarch64 && ! compgen -G "$(rustc --print sysroot)/lib/rustlib/$target/lib/libcore-*" > /dev/null; then
  rustup target add "$target" || { echo "tests/release.sh: no Rust library for $target; where Rust is rustup's: rustup target add $target" >&2; exit 1; }
fi

# What packages have.
products=(-p fdbroker -p fdbrokerd -p fdbroker-capi -p fdbroker-cuda-layer -p fdbroker-ze-layer)
crates=(level-zero-sys fdbroker-scm fdbroker-protocol fdbroker-client)
# Verified against each other: cargo builds each from its archive, with the archives of those before.
package() { cargo package --quiet "${crates[@]/#/-p=}"; }
version=$(cargo metadata --format-version 1 --no-deps | python3 -c '
import json, sys
print(next(one["version"] for one in json.load(sys.stdin)["packages"] if one["name"] == "fdbroker-client"))')
archive() { echo "$CARGO_TARGET_DIR/package/$1-$version.crate"; }
# has_papers CRATE: readme and licence texts as files, and no path that leads out.
has_papers() {
  local files
  files=$(tar -tzf "$(archive "$1")" | sed "s,^$1-$version/,,") || return 1
  grep -qx README.md <<< "$files" && grep -q '^LICENSE' <<< "$files" || { echo "$files"; return 1; }
  ! grep -rnE '(include_str|include_bytes|include)!\("\.\./\.\./|#\[path = "\.\./\.\./' "$work/alone/$1/src"
}
# A program of its own, in no workspace, with the archives in the place of crates.io's.
alone() {
  local one
  mkdir -p "$work/alone/program/src" || return 1
  for one in "${crates[@]}"; do
    tar -xzf "$(archive "$one")" -C "$work/alone" && mv "$work/alone/$one-$version" "$work/alone/$one" || return 1
  done
  cp libclient/examples/producer.rs "$work/alone/program/src/main.rs"
  {
    printf '[package]\nname = "program"\nversion = "0.0.0"\nedition = "2024"\n[dependencies]\nfdbroker-client = "%s"\n' "$version"
    echo '[patch.crates-io]'
    for one in "${crates[@]}"; do echo "$one = { path = \"../$one\" }"; done
    echo '[workspace]'
  } > "$work/alone/program/Cargo.toml"
  cargo build --quiet --manifest-path "$work/alone/program/Cargo.toml"
}

if wanted crates; then
  check "licences, origins and bans of all crates" python3 tests/release/licences.py
  check "public items are those of tests/release/public.txt (public.py --update after a change that is meant)" python3 tests/release/public.py
  check "the crates are packaged, and built from their archives" package
  check "a program outside this tree is built with them" alone
  for crate in "${crates[@]}"; do check "$crate has a readme and licence texts, and needs no file outside" has_papers "$crate"; done
fi

# In a network namespace where there is nothing: cargo could not fetch if it wanted to.
vendored() {
  local source=$work/vendored apart=(unshare --net)
  [ "$(id -u)" = 0 ] || apart=(unshare --user --map-root-user --net)
  git clone --quiet . "$source" && cd "$source" || return 1
  cargo vendor --quiet --locked vendor || return 1
  mkdir .cargo && printf '[source.crates-io]\nreplace-with = "vendored"\n[source.vendored]\ndirectory = "vendor"\n' > .cargo/config.toml || return 1
  "${apart[@]}" env CARGO_HOME="$work/home" CARGO_NET_OFFLINE=true \
    cargo build --quiet --locked "${products[@]}"
}
if wanted vendored; then check "programs and libraries are built from vendored crates, without a network" vendored; fi

# The library's own tests and those of whole brokers need a machine: qemu-user has no set_robust_list(2), on which the word of life in
# the shared page rests, and reads memory for process_vm_readv(2) in its own way.
if wanted aarch64; then
  on_arm() {
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
      cargo "$1" --quiet --target "$target" "${@:2}"
  }
  check "programs and libraries are built for aarch64" on_arm build "${products[@]}"
  check "units of protocol, scm, the core and the bindings run on aarch64" \
    on_arm test --lib --no-fail-fast -p fdbroker-protocol -p fdbroker-scm -p fdbroker-core -p level-zero-sys
fi

# The tag of the version before, once there is one; until then a commit with the wire and the handed-over state of today.
UPGRADE_FROM=695dd65494b0
# packages_of COMMIT RELEASE: an emulated machine takes long to unpack what is compressed.
packages_of() {
  local source=$work/source-$2
  git clone --quiet --no-checkout . "$source" && git -C "$source" checkout --quiet "$1" || return 1
  DPKG_DEB_COMPRESSOR_TYPE=none DEB_BUILD_OPTIONS=noautodbgsym "$source/packaging/build.sh" deb --release "$2" --output "$work/packages"
}
# The guest's own programs are built as ever, in the tree's target folder.
upgraded() (
  unset CARGO_TARGET_DIR
  tests/vm/systemd.sh -s bookworm -p "$work/packages" > "$work/guest" && return
  grep '^FAILED' "$work/guest"
  return 1
)
if wanted upgrade; then
  check "packages of $UPGRADE_FROM" packages_of "$UPGRADE_FROM" 1
  check "packages of this commit" packages_of HEAD 2
  check "a service is upgraded from the first to the second under load, and nothing is lost" upgraded
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
