"""Sources that load, sources that don't and what is said about them, and the ids that end a text."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import pytest
import torch

from lade_edge.engines import ExportError
from lade_edge.export.loader import load_source, save_sidecars
from lade_edge.export.support import position_limit
from tiny_gguf import LAYERS, save_tiny_gguf
from tiny_models import save_model, tiny_config, tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tiny_model(tiny_config("llama")), tmp_path_factory.mktemp("load") / "llama")


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_gguf(tmp_path_factory.mktemp("load") / "tiny.gguf")


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def refusal(source: Path | str) -> str:
    with pytest.raises(ExportError) as caught:
        load_source(str(source))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_folder_comes_in_single_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny_model(tiny_config("llama")).to(dtype)
    source = load_source(str(save_model(model, tmp_path / "model")))
    assert {weight.dtype for weight in source.model.parameters()} == {torch.float32}
    assert torch.equal(source.model.lm_head.weight, model.lm_head.weight.float())
    assert (source.name, source.origin) == ("model", "model")


def test_gguf(gguf_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = load_source(str(gguf_file))
    assert (source.name, source.origin) == ("tiny", "tiny.gguf")
    assert source.config.num_hidden_layers == LAYERS
    ids = source.tokenizer.encode("ab c")
    assert source.tokenizer.decode(ids) == "ab c"
    printed = capfd.readouterr()
    assert printed.out + printed.err == ""  # transformers' bar is kept off the terminal


@pytest.mark.parametrize("size", [1000, 60000, -4096])
def test_truncated_gguf(size: int, gguf_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(gguf_file.read_bytes()[:size])
    assert refusal(path).startswith("short.gguf can't be read as a model (")


def test_garbage_gguf(tmp_path: Path) -> None:
    path = tmp_path / "garbage.gguf"
    path.write_bytes(b"GGUF" + bytes(range(256)) * 8)
    assert "garbage.gguf can't be read as a model" in refusal(path)
    path.write_bytes(b"PK\x03\x04" * 10)
    assert r"begins with b'PK\x03\x04', expected b'GGUF'" in refusal(path)
    path.write_bytes(b"")
    assert "begins with b'', expected b'GGUF'" in refusal(path)
    assert "does not exist; expected a .gguf file" in refusal(tmp_path / "absent.gguf")


def test_truncated_weights(copy: Path) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "the weights of copy can't be loaded (" in refusal(copy)
    path.write_bytes(b"garbage" * 99)
    assert "the weights of copy can't be loaded (" in refusal(copy)
    path.unlink()
    assert "the weights of copy can't be loaded (" in refusal(copy)


def test_missing_weight(copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = copy / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    assert "lacks the weight model.layers.1.mlp.up_proj.weight" in refusal(copy)


def test_broken_config(copy: Path) -> None:
    path = copy / "config.json"
    for text, reason in (
        ("{broken", "not a valid JSON file"),
        ("{}", "Unrecognized model"),
        ('{"model_type": "nonsense"}', "`nonsense`"),
    ):
        path.write_text(text)
        message = refusal(copy)
        assert message.startswith("copy can't be read as a model (")
        assert reason in message
    path.unlink()
    assert "holds no config.json; expected a Hugging Face model folder" in refusal(copy)


def test_code_from_a_folder_is_never_run(copy: Path) -> None:
    path = copy / "config.json"
    config = json.loads(path.read_text()) | {"model_type": "own"}
    config["auto_map"] = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    path.write_text(json.dumps(config))
    (copy / "code.py").write_text("raise SystemExit('ran')")
    assert "copy can't be read as a model (" in refusal(copy)


def test_an_adapter_is_refused_not_left_out(copy: Path) -> None:
    """Beside the weights it belongs to, and alone."""
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "org/base", "r": 4}
    (copy / "adapter_config.json").write_text(json.dumps(adapter))
    reason = "copy holds an adapter (adapter_config.json), which can't be exported; merge it into"
    assert reason in refusal(copy)
    (copy / "config.json").unlink()
    assert reason in refusal(copy)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_no_tokenizer(family: str, tmp_path: Path) -> None:
    tiny_model(tiny_config(family)).save_pretrained(tmp_path / "bare")
    message = refusal(tmp_path / "bare")
    assert message.startswith("bare has no fast tokenizer (tokenizer.json) that loads; save one")


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    for value in (math.nan, math.inf):
        model = tiny_model(tiny_config("llama"))
        model.model.layers[0].mlp.up_proj.weight.data[2, 3] = value
        message = refusal(save_model(model, tmp_path / str(value)))
        assert message.startswith("weight model.layers.0.mlp.up_proj.weight holds values that are")


def test_hub_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    message = refusal("no-such-org/no-such-model")
    assert message.startswith("no-such-org/no-such-model can't be read as a model (")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("source", ["/absent/folder", "./absent", "absent", "a/b/c", __file__])
def test_no_source_at_all(source: str) -> None:
    assert f"{source} is not a model; expected a Hugging Face folder, a hub id" in refusal(source)


def test_end_ids_are_the_union_of_all_sources(tmp_path: Path) -> None:
    """B29: config, the list of generation_config, tokenizer, and what the chat template ends with."""
    model = tiny_model(tiny_config("llama", eos_token_id=5))
    model.generation_config.eos_token_id = [6, 7]
    folder = save_model(model, tmp_path / "model")
    tokenizer = tiny_tokenizer()  # its own end is 2
    tokenizer.add_special_tokens({"additional_special_tokens": ["w8", "w9"]})
    tokenizer.chat_template = "{% for m in messages %}{{ 'w9 ' + m.content + ' w8 ' }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    assert load_source(str(folder)).eos_token_ids == (2, 5, 6, 7, 8)


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{{ messages[0].content }}"])
def test_templates_that_end_with_nothing(template: str, copy: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(copy)
    assert load_source(str(copy)).eos_token_ids == (2,)


def test_sidecars_name_no_folder(folder: Path, tmp_path: Path) -> None:
    save_sidecars(load_source(str(folder)), tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"tokenizer.json", "config.json", "generation_config.json"}
    assert all(str(folder) not in path.read_text() for path in tmp_path.iterdir())


def test_config_without_a_position_limit() -> None:
    config = SimpleNamespace(model_type="endless", max_position_embeddings=None)
    with pytest.raises(ExportError, match="endless's config names no max_position_embeddings"):
        position_limit(config)
