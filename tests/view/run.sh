#!/bin/bash
# Who sees and may do what on a node service: two users, a monitor and an administrator, as real users with real clients. Must never
# leave a process or a file behind.
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -uo pipefail
root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)

case ${1-} in
  '') ;;
  -h | --help)
    cat << 'HELP'
usage: tests/view/run.sh

Starts a node service as a user of its own, with clients of two users that have
allocations, leases, objects and jobs. Each command that looks, and each request of
the bare protocol, is made by both users, by a member of monitor_group and by root: a user sees what is their own and
nothing of the other, a monitor sees all, and only root acts. Needs root. It takes some seconds.
HELP
    exit 0 ;;
  *) echo "tests/view/run.sh: unknown argument '$1' (--help explains)" >&2; exit 2 ;;
esac

passed=0 failed=0
if [ "$(id -u)" != 0 ]; then
  not_run "who sees and may do what" "needs root, to be several users"
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]; exit
fi
target=$("$root/tests/programs.py") || exit 1
# Copies that every user can read: a checkout may be private.
place=$(mktemp -d /tmp/fdb-view.XXXXXX)
trap 'rm -rf "$place"' EXIT
cp "$target/fdbroker" "$target/fdbrokerd" "$root"/tests/view/*.py "$place/"
chmod -R a+rX "$place"
unset FDBROKER_SOCKET FDBROKER_ADMIN_SOCKET FDBROKER_CONFIG XDG_RUNTIME_DIR
python3 -B "$place/view.py" "$place"
