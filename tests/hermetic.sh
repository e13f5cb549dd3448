#!/bin/bash
# Runs a test command once under each odd parent that people, schedulers and services have been: the result must be the
# same. Must never leave a process of its load behind.
set -uo pipefail

case ${1-} in
  -h | --help)
    cat << 'HELP'
usage: tests/hermetic.sh [COMMAND ...]      (default: cargo test --workspace --quiet)

Runs the command under nohup(1); with signals ignored; with fds 3, 4, 5 and 9 inherited; with stdin closed; with at most
1024 fds; with an environment of HOME and PATH (and where cargo builds); from the directory /; beside 20 busy processes.
The command is `cargo ...`, or a program by its full path.
Ends with `N passed, N failed`. For a user with nothing of yours:

  sudo useradd -m plain; sudo -u plain git clone . /home/plain/fdbroker
  sudo -u plain sh -c 'cd ~/fdbroker && ulimit -n 1024 && sh tests/run.sh'
HELP
    exit 0 ;;
esac
[ $# -gt 0 ] || set -- cargo test --workspace --quiet
# From / cargo must be told of which workspace.
[ "$1" != cargo ] || set -- cargo "${2-test}" --manifest-path "$(dirname "$(readlink -f "$0")")/../Cargo.toml" "${@:3}"
log=$(mktemp) load=() passed=0 failed=0
end_load() { [ "${#load[@]}" = 0 ] || { kill "${load[@]}" && wait "${load[@]}"; } 2> /dev/null; load=(); }
trap 'end_load; rm -f "$log"' EXIT

# under NAME SHELL-WORDS COMMAND...: SHELL-WORDS make the parent, and end with the start of the command.
under() {
  local name=$1 parent=$2; shift 2
  if (eval "$parent") > "$log" 2>&1; then
    passed=$((passed + 1)); echo "ok      $name"
  else
    failed=$((failed + 1)); echo "FAILED  $name"; grep -E '^test .*FAILED|panicked at|^error' "$log" | head -n 20; tail -n 20 "$log"
  fi
}
under "nohup" 'nohup "$@"' "$@"
under "signals ignored" "trap '' HUP INT QUIT TERM ALRM PIPE USR1 USR2 TSTP; exec \"\$@\"" "$@"
under "inherited fds" 'exec "$@" 3< /dev/null 4< /dev/null 5< /dev/null 9< /dev/null' "$@"
under "stdin closed" 'exec "$@" <&-' "$@"
under "at most 1024 fds" 'ulimit -n 1024; exec "$@"' "$@"
keep=(HOME="$HOME" PATH="$PATH")
for name in ${!CARGO@} ${!RUSTUP@}; do keep+=("$name=${!name}"); done
under "an empty environment" 'exec env -i "${keep[@]}" "$@"' "$@"
under "another directory" 'cd /; exec "$@"' "$@"
for _ in {1..20}; do timeout 3600 sh -c 'while :; do :; done' & load+=("$!"); done
under "a load of 20" 'exec "$@"' "$@"
end_load
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
