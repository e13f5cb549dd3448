# Sourced first by each test script: starts the script again by bash, with signals as after a login, with nothing on stdin
# and with no fd but 0, 1 and 2, so that a test is the same under any parent. Must never do so twice for one script.
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
