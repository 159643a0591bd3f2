"""usage: reference.py VOCABULARIES OUT

Writes OUT/MODEL.jsonl for each model in VOCABULARIES: texts with their token ids by `tokenizers`, and chats with the text
that `transformers` renders, or with null where it refuses. The corpus is random, from a fixed seed.
"""

import json
import os
import random
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"

from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

TEXTS = 4000
CHATS = 600

SCRIPTS = {
    "latin": "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ ,.;:!?'\"-",
    "accents": "àâäçéèêëîïôöùûüÿñøåæœß ÀÉÎÕÜ e\u0301o\u0308n\u0303 ſﬁ",
    "cyrillic": "абвгдежзийклмнопрстуфхцчшщъыьэюя АБВ ёїє",
    "greek": "αβγδεζηθικλμνξοπρστυφχψω ΑΒΓ άέ",
    "arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهوي َُِّ ٠١٢٣",
    "hebrew": "אבגדהוזחטיכלמנסעפצקרשת ָ ",
    "devanagari": "अआइईउऊकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसह ािीुूेैोौ् १२३",
    "thai": "กขคงจฉชซญฐณดตถทธนบปผฝพฟภมยรลวศษสหอฮ ะาิีึืุูเแโใไ ่้",
    "cjk": "的一是在不了有和人这中大为上个国我以要他时来用们東京都日本語漢字",
    "kana": "あいうえおかきくけこさしすせそアイウエオカキクケコー・、。",
    "hangul": "가나다라마바사아자차카타파하한국어 ",
    "digits": "0123456789 ,.-/%½²٣",
    "emoji": "😀🚀👍🏽👩\u200d💻🇩🇪❤\ufe0f✨\U0001f9d1\u200d🚒",
    "code": "{}[]()<>;:=+-*/\\|&^%$#@!~`\"'_ \n\t    abcifreturn0123",
    "blank": " \n\t\r\u00a0\u2003\u3000\u200b\u2028\x0b\x0c",
    "control": "\x00\x01\x02\x1b\x1c\x1f\x7f\x80\x9f\ufeff\ufffd",
    "odd": "\u0300\u0301\u0600\ud7ff\ue000\uffff\U00010000\U0010ffff\U000e0001",
}
WORDS = """the router sends every request to a pod that already holds its prefix; it's what we've measured, isn't it? I'M
def main(): return {"key": [1, 2.5, None], 'x': "y\\n"} fn let mut pub struct impl for in async await SELECT * FROM WHERE
https://example.com/a?b=c&d=%20 user@example.com 192.168.0.1 2026-11-29T12:34:56Z 3.14159 1,000,000 0xDEADBEEF""".split(" ")


def text(rng, special):
    kind = rng.random()
    if kind < 0.02:
        # Very long runs.
        return rng.choice([" ", "a", "\n", "ab", "é", "漢", "0", "=", "\t", "हा", "😀"]) * rng.randrange(200, 3000)
    if kind < 0.3:
        return rng.choice(["", " ", "\n"]).join(rng.choice(WORDS) + rng.choice([" ", "", "\n", "  "]) for _ in range(rng.randrange(60)))
    parts = []
    for _ in range(rng.randrange(1, 12)):
        chars = SCRIPTS[rng.choice(list(SCRIPTS))]
        if rng.random() < 0.1:
            parts.append(rng.choice(special))
        elif rng.random() < 0.1:
            parts.append(rng.choice(chars) * rng.randrange(2, 60))
        elif rng.random() < 0.05:
            point = rng.randrange(0x110000)
            parts.append(chr(point) if not 0xD800 <= point < 0xE000 else "x")
        else:
            parts.append("".join(rng.choice(chars) for _ in range(rng.randrange(1, 30))))
    return "".join(parts)


def value(rng, depth=0):
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind == 0:
        return None
    if kind == 1:
        return rng.random() < 0.5
    if kind == 2:
        return rng.choice([0, 1, -7, 12345678901234567, 3.5, 1.0, -0.0, 1e-7, 2.5e17 + 0.0, 1e22 / 3e22])
    if kind < 6:
        return text(rng, ["x"])[:40]
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(["z", "a", "type", "größe", "日本", 'q"']) + str(n): value(rng, depth + 1) for n in range(rng.randrange(4))}


def tool(rng, n):
    return {
        "type": "function",
        "function": {
            "name": f"tool_{n}",
            "description": text(rng, ["x"])[:80],
            "parameters": {"type": "object", "properties": {"p": {"type": "string", "enum": value(rng)}}, "required": ["p"]},
        },
    }


def chat(rng, special):
    messages = []
    content = lambda: text(rng, special)[:300]
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": content()})
    for _ in range(rng.randrange(1, 6)):
        messages.append({"role": "user", "content": content()})
        kind = rng.random()
        answer = {"role": "assistant", "content": content()}
        if kind < 0.3:
            if rng.random() < 0.3:
                answer["content"] = rng.choice([None, ""])
            calls = [{"name": f"tool_{n}", "arguments": {"p": value(rng)} if rng.random() < 0.8 else content()} for n in range(rng.randrange(1, 3))]
            answer["tool_calls"] = [
                {"type": "function", "id": f"call_{n}", "function": call} if rng.random() < 0.7 else call for n, call in enumerate(calls)
            ]
            messages.append(answer)
            messages += [{"role": "tool", "tool_call_id": f"call_{n}", "content": content()} for n in range(len(calls))]
            continue
        if kind < 0.5:
            answer["content"] = "<think>\n" + content() + "\n</think>\n\n" + answer["content"]
        elif kind < 0.6:
            answer["reasoning_content"] = content()
        elif kind < 0.63:
            answer["content"] = [{"type": "text", "text": content()}, {"type": "image"}]
        messages.append(answer)
    if rng.random() < 0.5:
        messages.append({"role": "user", "content": content()})
    given = {"messages": messages, "add_generation_prompt": rng.random() < 0.7}
    if rng.random() < 0.4:
        given["tools"] = [tool(rng, n) for n in range(rng.randrange(1, 4))]
    if rng.random() < 0.3:
        given["kwargs"] = {"enable_thinking": rng.random() < 0.5}
    if messages[-1]["role"] == "assistant" and rng.random() < 0.5:
        given |= {"continue_final_message": True, "add_generation_prompt": False}
    return given


# What models' templates do in Jinja, in one place: none of them does all of it.
FEATURES = """{%- macro args(call, sep=', ') -%}
{%- for k, v in call.items() %}{{ k }}={{ v | tojson }}{{ sep if not loop.last }}{% endfor -%}
{%- endmacro -%}
{{- bos_token }}
{% set ns = namespace(seen=0, last=none, parts=[]) %}
{% for m in messages if m.role != 'nobody' %}
    {# a comment #}
    {% if loop.first and m.role == 'system' %}
SYSTEM[{{ m.content | trim }}]
        {% continue %}
    {% endif %}
    {% if m.content is string and (m.content | length) > 290 %}{% set ns.seen = ns.seen + 1 %}{% endif %}
    {%- if m.role not in ['user', 'assistant', 'tool', 'system'] %}{{ raise_exception('role ' ~ m.role) }}{% endif %}
[{{ loop.index }}/{{ loop.length }} {{ m['role'] | upper }}{{ ' (after ' ~ loop.previtem.role ~ ')' if loop.previtem is defined }}]
    {% if m.content is none %}
<none/>{{ m.content }}
    {% elif m.content is string %}
{{ m.content.strip().split('\\n')[0][:40] }}|{{ m.content.replace('a', 'A').lstrip()[-10:] }}|{{ m.content.startswith('x') }}
    {% else %}
{% for part in m.content %}{{ part.text if part.type == 'text' else '<' ~ part.type ~ '>' }}{% endfor %}

    {% endif %}
    {% for call in m.tool_calls or [] %}
        {% set call = call.function if call.function is defined else call %}
{{ call.name }}({{ args(call.arguments) if call.arguments is mapping else call.arguments }}){{ loop.index0 % 2 == 0 }}
    {% endfor %}
    {% generation %}{{ m.get('reasoning_content', '-') }}{% endgeneration %}

{% endfor %}
{{ messages[-1].role }}{{ messages[::-1][0].role }}{{ messages | map(attribute='role') | join(',') }}{{ ns.seen }}{{ 7 // 2 }}{{ -7 % 3 }}{{ 7 / 2 }}{{ 2 ** 3 }}
{{ tools | tojson(indent=2) if tools else tools }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ {'a': [1, 'it\\'s', none, true]} }}{{ enable_thinking | default('unset') }}{{ eos_token }}
{%- if add_generation_prompt %}<go>{% endif -%}
"""


def main():
    vocabularies, out = sys.argv[1:]
    for model in sorted(os.listdir(vocabularies)):
        rng = random.Random("warmpath " + model)
        here = os.path.join(vocabularies, model)
        tokenizer = Tokenizer.from_file(os.path.join(here, "tokenizer.json"))
        config = json.load(open(os.path.join(here, "tokenizer_config.json"), encoding="utf-8"))
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        known = {name: token["content"] if isinstance(token, dict) else token for name, token in config.items() if name.endswith("_token")}
        known = {name: token for name, token in known.items() if isinstance(token, str)}
        templates = [template for template in [config.get("chat_template"), FEATURES] if template]
        with open(os.path.join(out, model + ".jsonl"), "w", encoding="utf-8") as file:
            write = lambda line: file.write(json.dumps(line) + "\n")
            # Of what is wrong with a file of the wrong model, this is noticed first.
            write({"vocabulary": here, "special": known})
            for _ in range(TEXTS):
                given = text(rng, special)
                write({"text": given, "ids": tokenizer.encode(given, add_special_tokens=False).ids})
            for _ in range(CHATS):
                given = chat(rng, special)
                template = rng.choice(templates)
                arguments = {"tools": given.get("tools"), "add_generation_prompt": given["add_generation_prompt"],
                             "continue_final_message": given.get("continue_final_message", False)}
                try:
                    rendered = render_jinja_template([given["messages"]], chat_template=template, **arguments, **known, **given.get("kwargs", {}))[0][0]
                except Exception as error:
                    rendered, given["refused"] = None, repr(error)
                ids = None if rendered is None else tokenizer.encode(rendered, add_special_tokens=False).ids
                write({"chat": given, "template": template, "rendered": rendered, "ids": ids})
        print("  " + model, file=sys.stderr)


main()
