"""Chat templates in the styles of published model families, written from their public formats; conversations for them.

A byte-level tokenizer with the control tokens of all of them.
"""

from __future__ import annotations

import json
from pathlib import Path

CHATML = """{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

THINKING = """{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- if tools %}{{- raise_exception('no tools here') }}{%- endif %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == 'assistant' %}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}{{- content }}{%- endgeneration %}
        {{- '<|im_end|>\\n' }}
        {%- continue %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

HEADERS = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now('%d %b %Y') %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools is not none %}
    {{- 'Environment: ipython\\n' }}
{%- endif %}
{{- 'Today Date: ' + date_string + '\\n\\n' + system + '<|eot_id|>' }}
{%- for message in messages %}
    {%- set head = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' %}
    {{- head + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

INSTRUCTIONS = """{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and system is defined %}
            {{- '[INST] ' + system + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + '[/INST]' }}
        {%- endif %}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
"""

TURNS = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
"""

PARTS = """{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {%- for part in message['content'] %}
        {%- if part['type'] == 'text' %}{{- part['text'] + '\\n' }}{%- endif %}
    {%- endfor %}
    {{- '<|im_end|>' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n' }}"""

AS_JSON = """{%- for m in messages %}
    {{- m | tojson }}
    {%- if loop.index > 3 %}{% break %}{% endif %}
{%- endfor %}{{ {'b': '<é>', 'a': [1, none]} | tojson(indent=1, sort_keys=true) }}"""

STYLES = {
    "chatml": CHATML,
    "thinking": THINKING,
    "headers": HEADERS,
    "instructions": INSTRUCTIONS,
    "turns": TURNS,
    "json": AS_JSON,
}

TEXTS = (
    "What is 17 + 25?",
    "  spaces before and after  ",
    "Zwei\nZeilen\n\nund Umlaute: äöü ß €",
    "日本語のテキスト 🙂 und \u2028 mitten drin",
    "code:\n```python\nfor i in range(3):\n\tprint(i)\n```",
    "<b>&amp; \"quotes\" 'single' \\ back</b>",
    "{{ not_a_template }} {% raw %}",
    "tabs\tand 123456 digits",
    "<think>hm</think>\n\nplain",
    "x" * 300,
)

CONTROLS = (
    *("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>"),
    *("<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]"),
)


def conversations() -> list[list[tuple[str, str]]]:
    """Twenty: single questions, and dialogues of three turns, some with a system prompt."""
    found = [[("user", text)] for text in TEXTS]
    for i, text in enumerate(TEXTS):
        dialogue = [("user", text), ("assistant", TEXTS[i - 1]), ("user", TEXTS[i - 2])]
        found.append(([("system", TEXTS[i - 3])] if i % 2 else []) + dialogue)
    return found


def write_chat_model(folder: Path, template: object, **extra: object) -> Path:
    """tokenizer.json and tokenizer_config.json of a byte-level tokenizer with a few merges."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir(exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*TEXTS, "im_end im_start system user assistant eot_id"] * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROLS])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>", "<b>", "\n\n")])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>"},
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    config |= {} if template is None else {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | extra), encoding="utf-8")
    return folder
