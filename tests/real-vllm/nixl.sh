#!/usr/bin/env bash
# Prints a folder for PYTHONPATH with NIXL, by which vLLM's engines hand over KV; made once: 230 MB, some seconds.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
site=${WARMPATH_CACHE:-$root/.envoy}/nixl version=1.5.1
if [ "$(cat "$site/.nixl" 2>/dev/null)" != "$version" ]; then
  echo "installing nixl==$version (PyPI) ..." >&2
  rm -rf "$site"
  # PyPI's torch is built for CUDA 13, and NIXL insists on its counterpart, though no CUDA library is needed on CPU. What the package itself
  # depends on isn't all there.
  "$("$root/tests/real-vllm/get.sh")" -m pip --quiet --disable-pip-version-check install --no-deps --target "$site" \
    "nixl==$version" "nixl-cu13==$version" >&2
  # Its progress thread asks for no delay, and so takes a core for each engine; vLLM can't say otherwise.
  sed -i 's/agent_config.pthrDelay = .*/agent_config.pthrDelay = 1000/' "$site/nixl_cu13/_api.py"
  echo "$version" > "$site/.nixl"
fi
echo "$site"
