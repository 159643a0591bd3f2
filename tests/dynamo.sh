#!/usr/bin/env bash
# Prints the Python of an environment with NVIDIA Dynamo's frontend and simulated engine, made once (PyPI, 0.7 GB).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${WARMPATH_CACHE:-$root/.envoy}/dynamo-python
"$root/envoy/venv.sh" "$venv" ai-dynamo-runtime==1.6.1 aiohttp==3.14.5 kubernetes==32.0.1 msgspec==0.23.0 \
  prometheus-client==0.26.0 pyzmq==27.3.0 redis==8.1.0 tqdm==4.70.1 transformers==5.24.0 zstandard==0.25.0
# It asks for packages that only engines need.
[ -e "$venv/.dynamo" ] || "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps ai-dynamo==1.6.1 >&2
touch "$venv/.dynamo"
echo "$venv/bin/python"
