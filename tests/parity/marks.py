"""usage: marks.py QWEN3 OUT

Writes Qwen 3's tokenizer.json with the pattern of Qwen 3.5, by which combining marks belong to words, and with tokens for
a letter and its mark, which show whether they do.
"""

import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    tokenizer = json.load(file)

pattern = tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]
for old, new in ((r"?\p{L}+|", r"?[\p{L}\p{M}]+|"), (r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")):
    assert pattern["Regex"].count(old) == 1, old
    pattern["Regex"] = pattern["Regex"].replace(old, new)

# The characters that stand for bytes in the names of tokens.
plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
other = [byte for byte in range(256) if byte not in plain]
name = {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(other)}

vocab, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
size = len(vocab)
for letters, marks in (("कतदनमरलसह", "ािीुूेो्"), ("ابتدرسلم", "َُِّ"), ("אבהולמרש", "ָ"), ("กขคนมรส", "ิีึืุู่้")):
    for pair in ((letter, mark) for letter in letters for mark in marks):
        pair = ["".join(name[byte] for byte in character.encode()) for character in pair]
        if all(token in vocab for token in pair) and "".join(pair) not in vocab:
            vocab["".join(pair)] = len(vocab)
            merges.append(pair if isinstance(merges[0], list) else " ".join(pair))
assert len(vocab) > size, "no letter and mark were found in the vocabulary"
# Added tokens come after the vocabulary: `tokenizers` takes no other ids.
for token in tokenizer["added_tokens"]:
    token["id"] += len(vocab) - size

with open(sys.argv[2], "w", encoding="utf-8") as file:
    json.dump(tokenizer, file, ensure_ascii=False)
