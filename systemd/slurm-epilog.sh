#!/bin/bash
# Epilog= of slurm.conf(5): what the job has left at this node's broker is revoked, and logged with who has duplicates
# still: what processes that run on have registered, and what was registered with `keep` and outlives its process.
# What ended with its processes is gone by itself. Must never fail: a status other than 0 would take the node out of
# service.
set -u
PATH=${PATH:-/usr/bin:/bin}:/usr/local/bin
# A broker that hangs must not keep the node from its next job.
limit_s=20

# To the system's log, where there is one, and to who runs this by hand.
say() { echo "job $SLURM_JOB_ID: $*"; logger -t fdbroker-epilog -- "job $SLURM_JOB_ID: $*" 2> /dev/null || true; }

[ -n "${SLURM_JOB_ID-}" ] || { echo "slurm-epilog.sh: for Slurm, which sets SLURM_JOB_ID" >&2; exit 0; }
status=0
said=$(timeout "$limit_s" fdbroker revoke --job "slurm:$SLURM_JOB_ID" --yes 2>&1) || status=$?
case $status in
  # 3: no broker on this node; 4: it has nothing of this job.
  3 | 4) ;;
  0) while IFS= read -r line; do [ -z "$line" ] || say "$line"; done <<< "$said" ;;
  *) say "cannot revoke what it has left (status $status): $said" ;;
esac
exit 0
