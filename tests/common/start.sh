# Sourced first by each test script: starts the script again by bash, with signals as after a login, with nothing on stdin
# and with no fd but 0, 1 and 2, so that a test is the same under any parent. Must never do so twice for one script.
# Gives the script `not_run`.
# shellcheck shell=sh
[ -n "${BASH_VERSION-}" ] || exec bash "$0" "$@"
if [ "${FDBROKER_TEST_STARTED-}" != "$$" ]; then
  redirections='< /dev/null'
  for fd in 1 2; do
    # Closed, or closed and then taken for the script itself.
    case $(readlink "/proc/$$/fd/$fd") in
      '' | "$(readlink -f "$0")") redirections="$redirections $fd> /dev/null" ;;
    esac
  done
  for fd in "/proc/$$/fd"/*; do
    fd=${fd##*/}
    [ "$fd" -le 2 ] || redirections="$redirections $fd>&-"
  done
  # A shell cannot undo that a signal is ignored; env(1) can. The pid stays, and marks the second time.
  export FDBROKER_TEST_STARTED=$$
  eval 'exec env --default-signal bash "$0" "$@"' "$redirections"
fi
unset FDBROKER_TEST_STARTED

# not_run NAME REASON: says that a test cannot run on this machine; a failure when CI is set. The script has its counts in
# `passed` and `failed`.
not_run() {
  echo "not run: $1: $2"
  if [ -n "${FDBROKER_NOT_RUN_LOG-}" ]; then
    # tests/run.sh takes one from the passed for each line there.
    echo "$1: $2" >> "$FDBROKER_NOT_RUN_LOG"; passed=$((passed + 1))
  elif [ -n "${CI-}" ]; then
    failed=$((failed + 1))
  fi
}

# has_fds NAME N: whether a process can have so many fds here, by its hard limit. Where it cannot, the test is named as not run.
has_fds() {
  local hard
  hard=$(ulimit -Hn)
  [ "$hard" = unlimited ] || [ "$hard" -ge "$2" ] || { not_run "$1" "needs a hard limit of $2 fds; it is $hard (ulimit -Hn)"; return 1; }
}
