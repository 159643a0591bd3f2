#!/usr/bin/env bash
# The one way to build warmpath.wasm: wasm32-unknown-unknown with SIMD, importing nothing but proxy_*.
# Installs what is missing, does nothing when nothing changed, prints the module's version, size and imports.
set -euo pipefail
caller=$PWD
cd "$(dirname "$0")"

usage() {
  cat <<'EOF'
usage: ./wasm-build.sh [--tokenizer DIR]... [--test] [--features LIST] [--package NAME] [--out FILE]
                       [--image [FILE]]

  --tokenizer DIR  build a tokenizer into the module, under the folder's name: its tokenizer.json and tokenizer_config.json
  --test           quick profile for tests; the result is not for shipping
  --features LIST  cargo features; `test-trap` is refused without --test
  --package NAME   another cdylib of this workspace (default: warmpath)
  --out FILE       where the module goes (default: warmpath.wasm, with --test warmpath-test.wasm)
  --image [FILE]   also write the module as an OCI image, in an archive (default: warmpath.oci.tar), and print how to push it
EOF
}

profile=wasm features="" package=warmpath out="" image="" tokenizers=()
while [ $# -gt 0 ]; do
  case "$1" in
    --test) profile=wasm-test ;;
    --tokenizer) tokenizers+=("$(cd "$caller" && realpath -- "${2:?--tokenizer wants a folder}")"); shift ;;
    --features) features=${2:?--features wants a list}; shift ;;
    --package) package=${2:?--package wants a name}; shift ;;
    --image) image=warmpath.oci.tar; [[ ${2:---} == --* ]] || { image=$2; shift; } ;;
    --out) out=${2:?--out wants a file}; shift ;;
    -h|--help) usage; exit 0 ;;
    *) echo "wasm-build.sh: unknown argument '$1'" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
if [ "$profile" = wasm ] && [[ ",$features," == *,test-trap,* ]]; then
  echo "wasm-build.sh: the feature test-trap lets a request trap a VM; it goes with --test only" >&2
  exit 2
fi
if [ -n "$image" ] && { [ "$profile" != wasm ] || [ "$package" != warmpath ]; }; then
  echo "wasm-build.sh: --image is of what ships; it goes with neither --test nor --package" >&2
  exit 2
fi
if [ ${#tokenizers[@]} != 0 ] && [ "$package" != warmpath ]; then
  echo "wasm-build.sh: --tokenizer goes with the package warmpath only" >&2
  exit 2
fi
[ -n "$out" ] || { [ "$profile" = wasm ] && out=$package.wasm || out=$package-test.wasm; }

target=wasm32-unknown-unknown
command -v cargo >/dev/null || { echo "wasm-build.sh: cargo is not on PATH; install Rust from https://rustup.rs" >&2; exit 1; }
if [ ${#tokenizers[@]} != 0 ]; then
  # A folder for each list: a build with others is another build, and goes on where it was.
  built_in=$PWD/target/built-in/$(printf '%s\n' "${tokenizers[@]}" | cksum | cut -d' ' -f1)
  cargo run --quiet --locked --package warmpath -- built-in "$built_in" "${tokenizers[@]}"
  export WARMPATH_BUILT_IN=$built_in/built_in.rs
  features=${features:+$features,}built-in
fi
args=(build --quiet --locked --package "$package" --lib --profile "$profile" --target "$target")
[ -z "$features" ] || args+=(--features "$features")

have_target() { [ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ]; }

if ! have_target && command -v rustup >/dev/null; then
  echo "installing rustup's $target target ..." >&2
  timeout 120 rustup target add "$target" >&2 || true
fi
have_target || { echo "wasm-build.sh: $(rustc --version) has no standard library for $target; run: rustup target add $target" >&2; exit 1; }

export CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS='-C target-feature=+simd128 --cfg getrandom_backend="custom"'
echo "building $out ($profile) ..." >&2
cargo "${args[@]}"
built=${CARGO_TARGET_DIR:-target}/$target/$profile/${package//-/_}.wasm
cmp -s "$built" "$out" || cp "$built" "$out"
python3 envoy/wasm_imports.py "$out"
[ -z "$image" ] || python3 envoy/wasm_image.py "$out" "$image"
