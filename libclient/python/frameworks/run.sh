# The package beside real frameworks, by hand: sourced by test.sh, with the wheel in `wheel`. Each line that is ok names the versions that ran.
# Must never take a framework that is not there for one that works.
# shellcheck shell=bash disable=SC2154

fetch() { # NAME PACKAGE...: a virtual environment over the system's PyTorch, with the wheel and these
  local name=$1; shift
  "$system" -m venv --system-site-packages "$work/$name" > "$work/log" 2>&1 &&
    "$work/$name/bin/python" -m pip install --quiet "$@" "$wheel" >> "$work/log" 2>&1
}
# ran NAME PYTHON PROGRAM: a program whose last line says what ran.
ran() {
  if timeout --kill-after=10 600 "$2" -W ignore "$3" > "$work/out" 2>&1; then
    ok "$1: $(tail -n 1 "$work/out")"
    # The lines of a table.
    grep -E '  [0-9]|, ms  ' "$work/out"
  else
    fail "$1"; sed 's/^/      /' "$work/out" | tail -n 40
  fi
}
# Ray leaves its sessions behind, and asks its makers for news.
export RAY_TMPDIR=$work RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=disabled HF_HUB_OFFLINE=1

if "$system" -c 'import torch, venv, ensurepip' 2> /dev/null; then
  if fetch transformers transformers==4.44.2; then
    ran transformers "$work/transformers/bin/python" "$here/examples/transformers_server.py"
  else
    not_run transformers "pip cannot fetch it: $(tail -n 1 "$work/log")"
  fi
  if fetch ray ray==2.60.0; then
    ran Ray "$work/ray/bin/python" "$here/frameworks/ray_tensors.py"
  else
    not_run Ray "pip cannot fetch it: $(tail -n 1 "$work/log")"
  fi
else
  not_run "transformers and Ray" "$system has no PyTorch; run: sudo tests/install.sh"
fi
# It wants a PyTorch of its own, of 5 GB.
if [ -n "${VLLM_PYTHON-}" ]; then
  "$VLLM_PYTHON" -m pip install --quiet --no-deps --target "$work/vllm" "$wheel" &&
    PYTHONPATH=$work/vllm ran vLLM "$VLLM_PYTHON" "$here/frameworks/vllm_weights.py"
else
  not_run vLLM "VLLM_PYTHON names no Python that has it (0.33)"
fi
