# Sourced by tests/run.sh from the repository's root. Finds or installs a container engine and an image that holds Envoy
# at /usr/local/bin/envoy; exports ENVOY_CONTAINER (the engine, with its options) and ENVOY_IMAGE.
#
# The image is the official one where it can be pulled. Elsewhere it is made from the binary that envoy/get-envoy.sh
# gives: that, its loader and its libraries, and nothing else.

envoy_version=${ENVOY_VERSION:-$(tail -n 1 envoy/versions)}
run_flags=(--rm --network host --ulimit nofile=1024:1024 --ulimit nproc=1000:1000)

root_do() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# Images of this machine's files alone: works without a registry.
make_image() { # ENGINE…
  local image="warmpath-envoy:$envoy_version" binary files
  if "$@" image inspect "$image" >/dev/null 2>&1; then echo "$image"; return; fi
  binary=$(envoy/get-envoy.sh) || return 1
  echo "no official image to be had; making $image from $binary ..." >&2
  files=$(mktemp -d) || return 1
  mkdir -p "$files/usr/local/bin" "$files/tmp" "$files/etc"
  cp -L "$binary" "$files/usr/local/bin/envoy"
  # ldd names the libraries as "name => path (address)", and the loader as "path (address)".
  ldd "$binary" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$files$(dirname "$library")"
    cp -L "$library" "$files$library"
  done
  tar -C "$files" -c . | "$@" import - "$image" >&2 || { rm -rf "$files"; return 1; }
  rm -rf "$files"
  echo "$image"
}

official_image() { # ENGINE…
  local image="docker.io/envoyproxy/envoy:v$envoy_version"
  "$@" image inspect "$image" >/dev/null 2>&1 || timeout 300 "$@" pull "$image" >&2 || return 1
  echo "$image"
}

runs_envoy() { # IMAGE ENGINE…
  local image=$1; shift
  "$@" run "${run_flags[@]}" --entrypoint /usr/local/bin/envoy "$image" --version >&2
}

find_engine() {
  local engine
  for engine in podman docker; do
    if command -v $engine >/dev/null && $engine info >/dev/null 2>&1; then echo $engine; return; fi
  done
  return 1
}

if ! engine=$(find_engine); then
  command -v apt-get >/dev/null || { echo "tests/container.sh: neither podman nor docker works here; install one" >&2; exit 1; }
  echo "installing podman and runc ..." >&2
  root_do apt-get update -qq >&2
  root_do apt-get install -y -qq podman runc >&2
  engine=$(find_engine) || { echo "tests/container.sh: podman is installed but 'podman info' fails" >&2; exit 1; }
fi

ENVOY_IMAGE=$(official_image "$engine" || make_image "$engine") || { echo "tests/container.sh: no image with Envoy" >&2; exit 1; }
ENVOY_CONTAINER=$engine
# crun, podman's default, fails on kernels with hybrid cgroups; runc works there.
if ! runs_envoy "$ENVOY_IMAGE" "$engine"; then
  ENVOY_CONTAINER="podman --runtime runc"
  if [ "$engine" != podman ] || ! runs_envoy "$ENVOY_IMAGE" podman --runtime runc; then
    echo "tests/container.sh: $engine cannot run Envoy from $ENVOY_IMAGE" >&2
    exit 1
  fi
fi
export ENVOY_CONTAINER ENVOY_IMAGE
echo "Envoy runs from $ENVOY_IMAGE by $ENVOY_CONTAINER"
