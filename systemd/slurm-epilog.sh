#!/bin/bash
# For Epilog= of slurm.conf(5): revokes what the job has left at this node's broker, and logs it with the processes that still
# have duplicates. A job leaves allocations of processes that run on, and allocations registered with `keep`, which outlive
# their process. All others ended with their processes. Named objects with keep or pin outlive the job: they are listed, and ended only
# with `end_with_job = true` in the broker's configuration. Must never fail: a status other than 0 would take the node out of service.
set -u
PATH=${PATH:-/usr/bin:/bin}:/usr/local/bin
# A broker that hangs must not keep the node from its next job.
limit_s=20

# Says it on stdout, for a run by hand, and in the system's log, where there is one.
say() { echo "job $SLURM_JOB_ID: $*"; logger -t fdbroker-epilog -- "job $SLURM_JOB_ID: $*" 2> /dev/null || true; }

[ -n "${SLURM_JOB_ID-}" ] || { echo "slurm-epilog.sh: SLURM_JOB_ID is not set; Slurm sets it when it runs an epilog" >&2; exit 0; }
status=0
said=$(timeout "$limit_s" fdbroker revoke --job "slurm:$SLURM_JOB_ID" --yes 2>&1) || status=$?
case $status in
  # 3: no broker runs on this node; 4: the broker has nothing of this job.
  3 | 4) ;;
  0) while IFS= read -r line; do [ -z "$line" ] || say "$line"; done <<< "$said" ;;
  *) say "cannot revoke what the job has left (status $status): $said" ;;
esac
exit 0
