#!/bin/bash
# For Prolog= of slurm.conf(5), beside slurm-epilog.sh: starts the node's broker, so that the first rank does not wait for it, and logs when
# it does not serve, or is being drained and would refuse the job's memory. Must never fail, unless the site asks for it: a status
# other than 0 takes the node out of service and puts the job back into the queue. FDBROKER_PROLOG_STRICT=1 asks for it.
set -u
PATH=${PATH:-/usr/bin:/bin}:/usr/local/bin
# A broker that hangs must not keep the job from its start.
limit_s=20

[ -n "${SLURM_JOB_ID-}" ] || { echo "slurm-prolog.sh: SLURM_JOB_ID is not set; Slurm sets it when it runs a prolog" >&2; exit 0; }
# Says it on stdout, for a run by hand, and in the system's log, where there is one.
say() { echo "job $SLURM_JOB_ID: $*"; logger -t fdbroker-prolog -- "job $SLURM_JOB_ID: $*" 2> /dev/null || true; }

# The administrators' socket starts the service.
status=0
said=$(timeout "$limit_s" fdbroker status --json 2>&1) || status=$?
case "$status $said" in
  '0 '*'"draining":true'*) say "the broker is being drained and takes no new memory; to end that: fdbroker drain --undo"; status=1 ;;
  '0 '*) ;;
  *) say "no broker serves this node (status $status): $said" ;;
esac
[ "$status" = 0 ] || [ "${FDBROKER_PROLOG_STRICT-}" != 1 ] || exit 1
exit 0
