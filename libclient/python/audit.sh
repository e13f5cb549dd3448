#!/bin/bash
# Has auditwheel confirm the platform tag of a wheel: audit.sh WHEEL. AUDITWHEEL names the program; pip install auditwheel brings it.
# Must never pass a wheel when auditwheel said anything else.
set -euo pipefail
wheel=$1
tag=${wheel%.whl} tag=${tag##*-}
# It names the oldest platform that the files run on. An older tag than that would be a lie, a newer one would keep users away.
said=$("${AUDITWHEEL:-auditwheel}" show "$wheel" | tr '\n' ' ')
case $said in
  *"is consistent with the following platform tag: \"$tag\""*) echo "auditwheel: consistent with $tag" >&2 ;;
  *) echo "audit.sh: auditwheel does not agree with $tag: $said" >&2; exit 1 ;;
esac
