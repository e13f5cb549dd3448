#!/bin/bash
# Tests systemd/install.sh, and its files as an application uses them: names and modes, the documented configuration,
# pkg-config, headers in C and C++, static and run-time linking, examples against a broker. Must never touch the system
# outside its own directory.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
root=$(cd "$here/../.." && pwd)

case ${1-} in
  '') ;;
  -h | --help)
    sed -n '2,4s/^# //p' "$0"
    echo "usage: tests/install/run.sh      (no options; status 77: pkg-config or gcc is missing)"
    exit 0 ;;
  *) echo "tests/install/run.sh: unknown argument '$1' (it takes none)" >&2; exit 2 ;;
esac
for tool in pkg-config gcc g++ nm; do
  command -v "$tool" > /dev/null && continue
  echo "$tool is not installed; run: sudo tests/install.sh"
  exit 77
done

# A check takes a second; one that hangs is ended after this time.
limit_s=60
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/log
unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET

passed=0 failed=0
# check NAME COMMAND...: one test; the command's output is shown when it fails.
check() {
  local name=$1; shift
  if "$@" > "$log" 2>&1; then
    passed=$((passed + 1)); echo "ok      $name"
  else
    failed=$((failed + 1)); echo "FAILED  $name"; tail -n 30 "$log" | sed 's/^/        /'
  fi
}
# ends STATUS TEXT COMMAND...: the command ends with this status and prints TEXT.
ends() {
  local status=$1 text=$2 got=0 out; shift 2
  out=$("$@" 2>&1) || got=$?
  printf 'status %s: %s\n' "$got" "$out"
  [ "$got" = "$status" ] && [[ $out == *"$text"* ]]
}
same() { diff <(printf '%s\n' "$1") <(printf '%s\n' "$2"); }

# ---- the installation

install=$root/systemd/install.sh
programs=$("$root/tests/programs.py") || exit 1
stage=$work/stage
# Neither an odd umask nor a strange working directory may change the modes or the places of the files.
install_from_elsewhere() { (umask 077 && cd "$work" && "$install" --from "$programs" --destdir stage --prefix /usr --systemd 257); }
check "install.sh --destdir relative to the caller" install_from_elsewhere
[ -e "$stage/usr/lib/libfdbroker.so" ] || { cat "$log"; echo "the rest needs it"; echo "$passed passed, $failed failed"; exit 1; }

# Every file and link with its mode, without man pages and documentation, whose number grows.
expected="755 bin/fdbroker
755 bin/fdbrokerd
644 include/fdbroker.h
644 include/fdbroker_dl.h
644 lib/.debug/libfdbroker.so.0.1.0.debug
644 lib/cmake/fdbroker/fdbroker-config-version.cmake
644 lib/cmake/fdbroker/fdbroker-config.cmake
644 lib/fdbroker/.debug/libfdbroker_cuda.so.debug
644 lib/fdbroker/level-zero/.debug/libfdbroker_ze.so.debug
644 lib/fdbroker/level-zero/libfdbroker_ze.so
777 lib/fdbroker/level-zero/libze_validation_layer.so.1
644 lib/fdbroker/libfdbroker_cuda.so
644 lib/libfdbroker.a
777 lib/libfdbroker.so
777 lib/libfdbroker.so.0
644 lib/libfdbroker.so.0.1.0
644 lib/pkgconfig/fdbroker.pc
644 lib/systemd/system/fdbroker-audit.service
644 lib/systemd/system/fdbroker-audit.timer
644 lib/systemd/system/fdbroker-metrics.service
644 lib/systemd/system/fdbroker-textfile.service
644 lib/systemd/system/fdbroker-textfile.timer
644 lib/systemd/system/fdbrokerd-admin.socket
644 lib/systemd/system/fdbrokerd.service
644 lib/systemd/system/fdbrokerd.service.d/preserve.conf
644 lib/systemd/system/fdbrokerd.socket
644 lib/sysusers.d/fdbroker.conf
644 lib/tmpfiles.d/fdbroker.conf"
listing() {
  (cd "$stage/usr" && find bin include lib ! -type d -printf '%m %p\n') | sort -k2
}
check "files and modes" same "$expected" "$(listing)"
check "directories can be entered by all" same "" "$(find "$stage" -mindepth 1 -type d ! -perm 755)"
check "documentation, licences and examples" test -s "$stage/usr/share/doc/fdbroker/LICENSE-MIT" -a \
  -s "$stage/usr/share/doc/fdbroker/README.md" -a -s "$stage/usr/share/doc/fdbroker/examples/producer.c"
check "a manual page of each command, and of the daemon" same "$(
  { "$stage/usr/bin/fdbroker" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z-]*\).*/fdbroker-\1.1/p' | grep -v -- -help
    printf '%s\n' fdbroker.1 fdbroker-config-{check,show}.1 fdbroker-limits-{save,set}.1 fdbrokerd.8; } | sort)" "$(find "$stage/usr/share/man" -type f -printf '%f\n' | sort)"
check "they are written for man(7)" same "" "$(grep -L '^\.TH "FDBROKER' -r "$stage/usr/share/man")"
check "completions of three shells" grep -q ' ls ' "$stage"/usr/share/{bash-completion/completions/fdbroker,zsh/site-functions/_fdbroker,fish/vendor_completions.d/fdbroker.fish}
check "links lead to the library" same "libfdbroker.so.0 libfdbroker.so.0.1.0" \
  "$(readlink "$stage/usr/lib/libfdbroker.so") $(readlink "$stage/usr/lib/libfdbroker.so.0")"

sums() { (cd "$stage" && find . -type f -exec sha256sum {} + | sort -k2; find . -type l -printf '%p %l\n' | sort); }
before=$(sums)
exec 8< "$stage/usr/bin/fdbroker"
check "a second installation" "$install" --destdir "$stage" --prefix /usr --from "$programs" --systemd 257
check "it changes nothing and leaves nothing behind" same "$before" "$(sums)"
check "a program that is open during the installation stays as it was" test \
  "$(stat -L -c %i /proc/self/fd/8)" != "$(stat -c %i "$stage/usr/bin/fdbroker")"
exec 8<&-

check "another prefix and library directory" "$install" --from "$programs" --destdir="$work/other" --prefix=/opt/x \
  --libdir=/opt/x/lib64 --systemd 252
check "units name the prefix" same "ExecStart=/opt/x/bin/fdbrokerd" \
  "$(grep -o '^ExecStart=[^ ]*' "$work/other/opt/x/lib/systemd/system/fdbrokerd.service")"
check "an older systemd: not the drop-in that it would warn about" test ! -e \
  "$work/other/opt/x/lib/systemd/system/fdbrokerd.service.d"
check "so does the pkg-config file" same "-I/opt/x/include -L/opt/x/lib64 -lfdbroker" "$(
  PKG_CONFIG_PATH=$work/other/opt/x/lib64/pkgconfig pkg-config --cflags --libs fdbroker | xargs)"
check "a place that cannot be written: status 1 and the remedy" ends 1 "run as root, or choose another place" \
  "$install" --from "$programs" --destdir /proc/nowhere
check "nothing built: status 1 and the remedy" ends 1 "cargo build --release --workspace" \
  "$install" --from "$work/empty" --destdir "$work/none"

# What was built from another state than the checkout is not installed, and no library is left out in silence.
built=$work/built
# rebuilt: a folder like that of the programs, to be changed.
rebuilt() {
  local name
  rm -rf "$built"; mkdir "$built"
  for name in fdbroker fdbrokerd libfdbroker libfdbroker_ze libfdbroker_cuda; do cp "$programs/$name.d" "$built/"; done
  for name in fdbroker fdbrokerd libfdbroker.a libfdbroker_ze.so libfdbroker_cuda.so; do ln -s "$programs/$name" "$built/"; done
}
from_built() { "$install" --from "$built" --destdir "$work/of-built" --prefix /usr --systemd 257 "$@"; }
rebuilt; rm "$built/fdbrokerd"; touch -d 2000-01-01 "$built/fdbrokerd"
check "a program that is older than a source of it: status 1 and the remedy" ends 1 "--any-state" from_built
check "it names the program and the source" ends 1 "$built/fdbrokerd is older than $root/" from_built
rebuilt; sed -i "s|$root/broker/src|/elsewhere/broker/src|g" "$built/fdbrokerd.d"
check "a program of another checkout" ends 1 "was built from another checkout: from /elsewhere/" from_built
rebuilt; sed -i "s|\$| $root/broker/src/gone.rs|" "$built/libfdbroker_cuda.d"
check "a library, a source of which is gone" ends 1 "$root/broker/src/gone.rs, which is not there any more" from_built
rebuilt; rm "$built/fdbroker.d"
check "a program of which nothing tells the sources" ends 1 "there is no $built/fdbroker.d" from_built
rebuilt; rm "$built/libfdbroker_ze.so"
check "a library is missing" ends 1 "there is no libfdbroker_ze.so in $built" from_built
check "none of these has installed a file" test ! -e "$work/of-built"
rm -f "$built"/*.d "$built"/lib*
check "--any-state --without-libraries: the programs alone" from_built --any-state --without-libraries
check "they are there, and no library" same "fdbroker fdbrokerd" "$(cd "$work/of-built/usr" && ls bin | xargs; find . -name 'lib*fdbroker*')"
check "an unknown argument: status 2" ends 2 "unknown argument '--perfix'" "$install" --perfix /usr
check "a missing directory: status 2" ends 2 "--destdir needs a directory" "$install" --destdir
check "a prefix that cannot be written into a unit: status 2" ends 2 "absolute path" "$install" --prefix 'my dir'

# ---- the configuration

# With every key of the example in force the daemon must accept it, and no key may be left to its default: so no key is
# missing, and none is misspelt. The fd table cannot be larger than this process's limit, nor are there more clients or kept fds than
# fit it.
example=$stage/etc/fdbroker/fdbrokerd.toml
in_force() { sed -E 's/^#([a-z_]+ = |\[\[)/\1/' "$example" > "$work/all.toml"; }
left_out() {
  grep -E '^(# )?[a-z_]+ = ' | grep -v -e '  # file$' -e '^table_fds = .*# hard RLIMIT_NOFILE$' \
    -e '^connections = .*  # limits.max_clients$' -e '^kept_fds = .*  # limits.table_fds$'
}
check_config() { env -u XDG_RUNTIME_DIR "$stage/usr/bin/fdbrokerd" --check-config --config "$1"; }
in_force
check "the example with every key in force" check_config "$work/all.toml"
check "no key is left to its default" same "" "$(check_config "$work/all.toml" | left_out)"
check "as it is, it changes nothing" same "" "$(check_config "$example" | grep -E '  # file$')"
sed -n '/^```toml$/,/^```$/{/^```/d; p}' "$root/docs/fleet.md" > "$work/fleet.toml"
check "the worked example of fleet.md is accepted" check_config "$work/fleet.toml"
check "and is in force" same 8 "$(check_config "$work/fleet.toml" | grep -c '  # file$')"
check "a key that is missing would be found" same "grace_ms = 10000  # default" \
  "$(grep -v '^grace_ms' "$work/all.toml" > "$work/less.toml"; check_config "$work/less.toml" | left_out)"
check "each key comes with its reason" same "" "$(awk '
  /^#?\[/ { is_told = 0; is_detailed = !/caps[.](domain|job|client)/; next }
  /^# / { is_told = 1; next }
  /^#[a-z_]+ = / { if (is_detailed && !is_told) print; is_told = 0; next }' "$example")"
echo 'log = "debug"' > "$example"
check "an administrator's configuration" "$install" --from "$programs" --destdir "$stage" --prefix /usr --systemd 257
check "is left as it is" same 'log = "debug"' "$(cat "$example")"

# ---- removal

echo /usr/bin/of_old >> "$work/other/opt/x/share/fdbroker/installed"
printf '%s\n' /opt/x/lib/of_old.so >> "$work/other/opt/x/share/fdbroker/installed"
touch "$work/other/opt/x/lib/of_old.so" "$work/other/opt/x/lib/of_another"
check "an upgrade" "$install" --from "$programs" --destdir="$work/other" --prefix=/opt/x --libdir=/opt/x/lib64 --systemd 252
check "removes what it no longer has, and nothing else" same "of_another" \
  "$(cd "$work/other/opt/x/lib" && find . -maxdepth 1 -type f -printf '%f\n')"
rm "$work/other/opt/x/lib/of_another"
check "uninstall" "$install" --uninstall --destdir="$work/other" --prefix=/opt/x
check "leaves the configuration only" same "./etc/fdbroker/fdbrokerd.toml" "$(cd "$work/other" && find . ! -type d)"
check "uninstall where nothing is: status 1 and the remedy" ends 1 "nothing is installed" \
  "$install" --uninstall --destdir="$work/other" --prefix=/opt/x

# ---- the library

lib=$stage/usr/lib/libfdbroker.so.0
exported=$(readelf -W --dyn-syms "$lib" | awk '/ (GLOBAL|WEAK) / && !/ UND / { print $8 }' | sort)
check "only fdbroker_* is exported, each with its version" same FDBROKER_0 "$(grep -v '^fdbroker_[a-z_]*@@FDBROKER_0$' <<< "$exported")"
symbols=$(sed -n 's/@@FDBROKER_0$//p' <<< "$exported")
check "so does the archive" same "$symbols" "$(nm -g --defined-only "$stage/usr/lib/libfdbroker.a" | awk 'NF == 3 { print $3 }' | sort)"
sections() { readelf -SW "$1" | grep -oE '\.(debug_info|gnu_debuglink)\b' | sort | xargs; }
debug_file() { readelf -p .gnu_debuglink "$1" | grep -oE 'lib.*\.debug'; }
for library in lib/libfdbroker.so.0.1.0 lib/fdbroker/level-zero/libfdbroker_ze.so lib/fdbroker/libfdbroker_cuda.so; do
  library=$stage/usr/$library
  check "${library##*/} is stripped, and its debug information is where gdb looks" same ".gnu_debuglink .debug_info" \
    "$(sections "$library") $(sections "${library%/*}/.debug/$(debug_file "$library")")"
done
check "the archive has no debug information" same "" "$(sections "$stage/usr/lib/libfdbroker.a")"
check "the soname" same "libfdbroker.so.0" "$(readelf -d "$lib" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')"

export PKG_CONFIG_SYSROOT_DIR=$stage PKG_CONFIG_PATH=$stage/usr/lib/pkgconfig
export PATH=$stage/usr/bin:$PATH
strict=(-Wall -Wextra -Wconversion -pedantic -Werror)
check "the version" same "$(fdbroker --version)" "fdbroker $(pkg-config --modversion fdbroker)"
read -r -a cflags <<< "$(pkg-config --cflags fdbroker)"
read -r -a libs <<< "$(pkg-config --libs fdbroker)"
read -r -a static <<< "$(pkg-config --static --libs fdbroker)"

compile() { # COMPILER SOURCE OUTPUT FLAGS...
  local compiler=$1 source=$2 output=$3; shift 3
  "$compiler" "${strict[@]}" "${cflags[@]}" "$source" -o "$work/$output" "$@"
}
examples=$stage/usr/share/doc/fdbroker/examples
cp "$here/dl.c" "$work/dl.cc"
cat > "$work/plain.cc" << 'PLAIN'
#include <fdbroker.h>
int main() {
  fdbroker_options_t options;
  fdbroker_options_init(&options);
  return fdbroker_open(&options, nullptr) == FDBROKER_OK;
}
PLAIN
check "producer.c: C99, by pkg-config" compile gcc "$examples/producer.c" producer -std=c99 "${libs[@]}"
check "consumer.c: C99, by pkg-config" compile gcc "$examples/consumer.c" consumer -std=c99 "${libs[@]}"
check "virtual_fd.c: C99, by pkg-config" compile gcc "$examples/virtual_fd.c" virtual_fd -std=c99 "${libs[@]}"
check "weight_cache.c: C99, by pkg-config" compile gcc "$examples/weight_cache.c" weight_cache -std=c99 "${libs[@]}"
check "fdbroker.h: C++11" compile g++ "$work/plain.cc" plain -std=c++11 "${libs[@]}"
check "fdbroker_dl.h: C99, without the library" compile gcc "$here/dl.c" dl -std=c99 -ldl
check "fdbroker_dl.h: C++11, without the library" compile g++ "$work/dl.cc" dl++ -std=c++11 -ldl

# The archive instead of the shared library, with the libraries that pkg-config names for it.
archive=()
for word in "${static[@]}"; do
  if [ "$word" = -lfdbroker ]; then archive+=("$stage/usr/lib/libfdbroker.a"); else archive+=("$word"); fi
done
check "producer.c: with the archive, by pkg-config --static" \
  compile gcc "$examples/producer.c" producer-static -std=c99 "${archive[@]}"
# It leaves all names but its own to the program, such as those of Rust that the program has itself.
echo 'void rust_eh_personality(void); void rust_eh_personality(void) {}' > "$work/own.c"
check "consumer.c: with the archive" compile gcc "$examples/consumer.c" consumer-static -std=c99 "$work/own.c" "${archive[@]}"
if command -v cmake > /dev/null; then
  mkdir "$work/cmake"
  cat > "$work/cmake/CMakeLists.txt" << 'CMAKE'
cmake_minimum_required(VERSION 3.13)
project(consumer C)
find_package(fdbroker 1.0 QUIET)
if(fdbroker_FOUND)
  message(FATAL_ERROR "a release with another soname is found")
endif()
find_package(fdbroker 0.1 REQUIRED)
add_executable(consumer-cmake ${EXAMPLES}/consumer.c)
target_link_libraries(consumer-cmake PRIVATE fdbroker::fdbroker)
add_executable(consumer-cmake-static ${EXAMPLES}/consumer.c)
target_link_libraries(consumer-cmake-static PRIVATE fdbroker::static)
CMAKE
  by_cmake() {
    cmake -S "$work/cmake" -B "$work/cmake/built" -DCMAKE_PREFIX_PATH="$stage/usr" -DEXAMPLES="$examples" \
      -DCMAKE_RUNTIME_OUTPUT_DIRECTORY="$work" && cmake --build "$work/cmake/built"
  }
  check "consumer.c: by CMake, with the library and with the archive" by_cmake
else
  not_run "the package of CMake" "cmake is not installed; run: sudo tests/install.sh"
fi
needs() { readelf -d "$work/$1" | grep -c "NEEDED.*libfdbroker"; }
check "which programs need the shared library" same "1 0 0" "$(needs producer) $(needs producer-static) $(needs dl)"

check "fdbroker_dl.h lists what the library exports" same "$symbols" "$("$work/dl" list | sort)"
declared=$(grep -oE '\bfdbroker_[a-z_]+ *\(' "$stage/usr/include/fdbroker.h" | tr -d ' (' | sort -u)
check "fdbroker.h declares what the library exports" same "" "$(comm -23 <(echo "$symbols") <(echo "$declared"))"

# ---- at run time

with_library() { LD_LIBRARY_PATH=$stage/usr/lib timeout -k 5 "$limit_s" "$@"; }
mkdir "$work/broken" "$work/older"
library_of() { awk '{ printf "int %s(void) { return 0; }\n", $0 }' | gcc -shared -fPIC -x c - -o "$1/libfdbroker.so.0"; }
echo fdbroker_version | library_of "$work/broken"
"$work/dl" required | library_of "$work/older"
for dl in dl dl++; do
  check "$dl: the library is missing" ends 3 "code 14: libfdbroker.so.0: cannot open" "$work/$dl"
  check "$dl: a function is missing" ends 3 "has no function fdbroker_error_name" env LD_LIBRARY_PATH="$work/broken" "$work/$dl"
  check "$dl: the optional ones are missing" ends 4 "an older library" env LD_LIBRARY_PATH="$work/older" "$work/$dl"
  check "$dl: no broker" ends 0 "open: NOT_CONNECTED" with_library env FDBROKER_SOCKET="$work/none.sock" "$work/$dl"
  check "$dl: with a broker" ends 0 "open: OK" with_library fdbroker run -- "$work/$dl"
done
check "consumer.c: no broker: the library's own words" ends 1 "NOT_CONNECTED" \
  with_library env FDBROKER_SOCKET="$work/none.sock" "$work/consumer" <(printf '00%.0s' {1..64})

# pair PRODUCER CONSUMER: one shares, the other reads; afterwards the handle is void.
cat > "$work/pair" << 'PAIR'
set -u
producer=$1 consumer=$2 file=$3
coproc "$producer" "$file" 2>&1
read -r said <&"${COPROC[0]}" && [ "$said" = "producer: shares 1048576 bytes; Enter ends it" ] || { echo "it said: $said"; exit 1; }
[ "$("$consumer" "$file")" = "consumer: 1048576 bytes, 0 of them wrong" ] || { echo "the consumer by file"; exit 1; }
[ "$("$consumer" < "$file")" = "consumer: 1048576 bytes, 0 of them wrong" ] || { echo "the consumer by stdin"; exit 1; }
pid=$COPROC_PID
echo >&"${COPROC[1]}"
wait "$pid" || { echo "the producer ended with $?"; exit 1; }
said=$("$consumer" "$file" 2>&1) && { echo "memory of a producer that is gone: $said"; exit 1; }
[[ $said =~ STALE|OWNER_GONE|Stale|OwnerGone ]] || { echo "after the end: $said"; exit 1; }
[ "$(wc -c < "$file")" = 129 ] || { echo "not 128 digits and a newline"; exit 1; }
PAIR
pair() { with_library fdbroker run -- bash "$work/pair" "$1" "$2" "$work/handle"; }
check "producer.c and consumer.c" pair "$work/producer" "$work/consumer"
check "the same with the archive" pair "$work/producer-static" "$work/consumer-static"
if [ -e "$work/cmake" ]; then
  check "the same by CMake" pair "$work/producer" "$work/consumer-cmake"
  check "the same by CMake, with the archive" pair "$work/producer" "$work/consumer-cmake-static"
fi

check "virtual_fd.c" ends 0 "written by the producer" with_library fdbroker run -- "$work/virtual_fd"

# weights FIRST SECOND: one start reads the files and ends, the next gets them.
cat > "$work/weights" << 'WEIGHTS'
set -u
first=$1 second=$2; shift 2
said=$("$first" model "$@" 2> /dev/null) && [ "$said" = "weight_cache: read 2 weights, 5 bytes, sum 492" ] || { echo "first: $said"; exit 1; }
said=$("$second" model "$@" 2> /dev/null) && [ "$said" = "weight_cache: got 2 weights, 5 bytes, sum 492" ] || { echo "second: $said"; exit 1; }
WEIGHTS
printf ab > "$work/one.bin"; printf bcd > "$work/two.bin"
weights() { with_library fdbroker run -- bash "$work/weights" "$1" "$2" "$work/one.bin" "$work/two.bin"; }
check "weight_cache.c, then weight_cache.rs" weights "$work/weight_cache" "$programs/examples/weight_cache"
check "weight_cache.rs, then weight_cache.c" weights "$programs/examples/weight_cache" "$work/weight_cache"

check "producer.rs and consumer.rs" pair "$programs/examples/producer" "$programs/examples/consumer"
check "producer.rs and consumer.c" pair "$programs/examples/producer" "$work/consumer"
check "producer.c and consumer.rs" pair "$work/producer" "$programs/examples/consumer"

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
