from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from fakes import byte_tokenizer
from lade_edge.engines.errors import ConfigError, ManifestError
from lade_edge.runtime.chat_template import ChatTemplate, special_tokens
from lade_edge.runtime.prompt import PromptEncoder

CHATML = """\
{%- if messages[0].role != 'system' %}
<|im_start|>system
You help.<|im_end|>
{% endif %}
{% for message in messages %}
    {# indented blocks vanish #}
    {% if message.role == 'tool' %}{% continue %}{% endif %}
<|im_start|>{{ message.role }}
{{ message.content | trim }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LLAMA = """{{- bos_token }}{% for m in messages %}{% set ns = namespace(n=loop.index) %}\
{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}\
{% else %}{{ '[INST] ' ~ m.content ~ ' [/INST]' ~ ns.n }}{% endif %}{% endfor %}"""
TOOLS = """{% for m in messages %}{{ m | tojson }}{{ m | tojson(indent=2) }}\
{{ {'b': 1, 'a': '<&>é'} | tojson(sort_keys=true, separators=(',', ':')) }}\
{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}\
{% if tools is none and documents is not defined %}x{% endif %}{{ unk_token is defined }}"""
DATE = "{{ strftime_now('%Y-%m-%d') }} {{ messages | length }} {{ dict(a=1).a }}"
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": " <b>Hi</b> 'you' "},
    {"role": "assistant", "content": "Hé\n", "name": None},
    {"role": "user", "content": "again"},
]
CONFIG = {
    "bos_token": "<|bos|>",
    "eos_token": {"__type": "AddedToken", "content": "<|eos|>", "special": True},
    "add_bos_token": True,
    "unk_token": None,
}


def write_folder(folder: Path, **entries: Any) -> Path:
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    config = CONFIG | {"tokenizer_class": "PreTrainedTokenizerFast"} | entries
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("template", [CHATML, LLAMA, TOOLS, DATE])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_renders_as_transformers_does(template: str, add_generation_prompt: bool) -> None:
    reference = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), bos_token="<|bos|>", eos_token="<|eos|>"
    )
    expected = reference.apply_chat_template(
        MESSAGES,
        chat_template=template,
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
    )
    ours = ChatTemplate({"default": template}, special_tokens(CONFIG))
    assert ours.render(MESSAGES, add_generation_prompt=add_generation_prompt) == expected


@pytest.mark.parametrize("template", [CHATML, LLAMA])
def test_tokenises_as_transformers_does(template: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, chat_template=template)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    encoder = PromptEncoder.from_folder(folder)
    expected = reference.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    assert encoder.encode(MESSAGES) == expected
    ids = encoder.encode("hi", system="Be brief.")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert ids == reference.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert ids.count(257) == (1 if template == LLAMA else 0)


def test_the_date_is_todays() -> None:
    text = ChatTemplate({"default": DATE}, {}).render(MESSAGES)
    assert abs(datetime.fromisoformat(text.split()[0]) - datetime.now()).days <= 1


def test_special_tokens_are_strings_or_mappings() -> None:
    config = CONFIG | {"extra_special_tokens": {"image_token": "<img>"}, "chat_template": "x"}
    assert special_tokens(config) == {
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "image_token": "<img>",
    }


def rendered(folder: Path, tools: list[dict[str, Any]] | None = None) -> str:
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = ChatTemplate.from_folder(folder, config)
    assert template is not None
    return template.render(MESSAGES, tools=tools)


def test_named_templates_in_the_configuration(tmp_path: Path) -> None:
    templates = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools {{ tools[0].name }}"},
    ]
    folder = write_folder(tmp_path, chat_template=templates)
    assert rendered(folder) == "plain"
    assert rendered(folder, tools=[{"name": "clock"}]) == "tools clock"


def test_template_files_win(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, chat_template="from the configuration")
    (folder / "chat_template.jinja").write_text("from the file", encoding="utf-8")
    assert rendered(folder) == "from the file"
    assert rendered(folder, tools=[]) == "from the file"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools", encoding="utf-8")
    assert rendered(folder, tools=[]) == "tools"


def test_templates_without_a_default(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, chat_template=[{"name": "rag", "template": "x"}])
    with pytest.raises(ConfigError, match="rag but no default"):
        rendered(folder)


@pytest.mark.parametrize("entry", [["x"], [{"name": "default"}], 5])
def test_a_template_entry_of_another_form(tmp_path: Path, entry: object) -> None:
    with pytest.raises(ManifestError, match="neither a text nor a list"):
        rendered(write_folder(tmp_path, chat_template=entry))


def test_a_template_file_that_is_not_text(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ManifestError, match="UTF-8"):
        rendered(folder)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('Roles must\nalternate.') }}", "Roles must alternate;"),
        ("{{ messages[9].role }}", "no element 9"),
        ("{{ messages + 1 }}", "can only concatenate"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "is unsafe"),
        ("{% if %}", "syntax error in line 1"),
        ("{% nonsense %}", "syntax error in line 1"),
    ],
)
def test_a_template_that_fails_gives_one_sentence(template: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        ChatTemplate({"default": template}, {}).render(MESSAGES)
    assert "\n" not in str(caught.value)
    assert "--raw" in str(caught.value)
