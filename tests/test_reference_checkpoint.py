"""The reference checkpoint: reproducible bytes, the shape of a real checkpoint, a tokenizer and a template that work."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer

from slipway.errors import DiskFailure
from slipway.reference import bpe, dialogue
from slipway.reference.checkpoint import Variant, contents, generate, main
from slipway.reference.config import LagunaConfig

GOLDEN = Path(__file__).parent / "data" / "golden"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def files() -> dict[Variant, dict[str, bytes]]:
    return {variant: contents(variant) for variant in Variant}


@pytest.fixture(scope="module")
def tokenizer(files: dict[Variant, dict[str, bytes]]) -> Tokenizer:
    return Tokenizer.from_buffer(files[Variant.PER_HEAD]["tokenizer.json"])


def render(**values: Any) -> str:
    """The chat template under plain jinja2, with transformers' notion of `tojson`."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(dialogue.CHAT_TEMPLATE).render(**values)


class TestBytes:
    @pytest.mark.parametrize("variant", Variant)
    def test_every_file_has_the_bytes_that_the_goldens_were_made_from(self, files, variant):
        recorded = json.loads((GOLDEN / f"{variant}.json").read_text())["sha256"]
        assert {name: hashlib.sha256(content).hexdigest() for name, content in files[variant].items()} == recorded

    def test_another_process_with_another_hash_seed_writes_the_same_folder(self, files, tmp_path):
        arguments = ["--out", str(tmp_path), "--variant", "per-element"]
        done = subprocess.run(
            [sys.executable, "-m", "slipway.reference.checkpoint", *arguments],
            env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files[Variant.PER_ELEMENT]
        assert "11 files, 4,267,088 parameters" in done.stdout

    def test_generate_reports_what_lies_in_the_folder(self, tmp_path):
        written = generate(tmp_path / "new" / "folder")
        assert written.variant is Variant.PER_HEAD
        assert list(written.files) == sorted(path.name for path in written.folder.iterdir())
        assert written.total_bytes == sum(path.stat().st_size for path in written.folder.iterdir()) < 12_000_000
        assert 3_000_000 < written.parameters < 5_000_000


class TestShape:
    @pytest.mark.parametrize("variant", Variant)
    def test_the_index_agrees_with_four_shards_that_the_safetensors_library_opens(self, files, variant, tmp_path):
        generate(tmp_path, variant)
        index = json.loads(files[variant][INDEX])
        shapes = LagunaConfig.load(tmp_path).tensor_shapes()
        seen = {}
        for shard in sorted(tmp_path.glob("*.safetensors")):
            with safe_open(shard, framework="np") as opened:
                for name in opened.keys():  # noqa: SIM118  (not a mapping)
                    assert index["weight_map"][name] == shard.name
                    seen[name] = tuple(opened.get_slice(name).get_shape())
        assert len(set(index["weight_map"].values())) == 4
        assert seen == shapes
        assert index["metadata"]["total_parameters"] == sum(int(np.prod(shape)) for shape in shapes.values())

    @pytest.mark.parametrize("variant", Variant)
    def test_headers_are_padded_to_eight_and_tensors_sorted_without_gaps(self, files, variant):
        total = 0
        for name, content in files[variant].items():
            if not name.endswith(".safetensors"):
                continue
            (length,) = struct.unpack("<Q", content[:8])
            assert length % 8 == 0
            header = json.loads(content[8 : 8 + length])
            assert header.pop("__metadata__") == {"format": "pt"}
            assert list(header) == sorted(header)
            ends = [entry["data_offsets"] for entry in header.values()]
            assert [begin for begin, _ in ends] == [0, *[end for _, end in ends[:-1]]]
            assert len(content) == 8 + length + ends[-1][1]
            total += ends[-1][1]
        assert total == json.loads(files[variant][INDEX])["metadata"]["total_size"]

    def test_gate_rows_follow_the_gating_and_heads_differ_by_layer(self, files):
        per_head = LagunaConfig.from_json(json.loads(files[Variant.PER_HEAD]["config.json"])).tensor_shapes()
        per_element = LagunaConfig.from_json(json.loads(files[Variant.PER_ELEMENT]["config.json"])).tensor_shapes()
        assert [per_head[f"model.layers.{n}.self_attn.g_proj.weight"][0] for n in range(4)] == [8, 12, 12, 8]
        assert {per_element[f"model.layers.{n}.self_attn.g_proj.weight"][0] for n in range(5)} == {8 * 32}

    def test_generation_config_names_both_ends_of_a_turn(self, files):
        generation = json.loads(files[Variant.PER_HEAD]["generation_config.json"])
        assert generation == {"bos_token_id": 2, "eos_token_id": [2, 24], "pad_token_id": 9}


class TestTokenizer:
    def test_ids_below_64_are_the_tokens_that_laguna_and_its_parsers_know(self, tokenizer):
        assert tokenizer.get_vocab_size() == 2048
        assert {tokenizer.id_to_token(one) for one in range(2048)} == set(tokenizer.get_vocab())
        for token_id, content in {2: "〈|EOS|〉", 9: "〈|PAD|〉", 12: "〈|MASK|〉", 24: "</assistant>"}.items():
            assert tokenizer.encode(content).ids == [token_id]

    def test_markup_stays_in_decoded_text_and_control_tokens_vanish(self, tokenizer):
        text = "〈|EOS|〉<think>a</think><tool_call>b</tool_call></assistant>"
        assert tokenizer.decode(tokenizer.encode(text).ids) == text.removeprefix("〈|EOS|〉")

    def test_scripted_words_are_one_token_each(self, tokenizer):
        assert len(tokenizer.encode(dialogue.REASONING).ids) == len(dialogue.REASONING.split())
        assert len(tokenizer.encode(dialogue.TOOL_NAME).ids) == 1

    def test_ordinary_english_costs_fewer_than_two_tokens_a_word(self, tokenizer):
        text = "Please write a short note about the history of the first public library and explain why people use it."
        assert len(tokenizer.encode(text).ids) < 2 * len(text.split())

    @given(st.text())
    def test_any_text_survives_encoding_and_decoding(self, tokenizer, text):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text

    def test_training_takes_the_commonest_pair_and_the_smaller_at_a_tie(self):
        assert bpe.train({"abab": 2, "bc": 3}, 3) == [("a", "b"), ("b", "c"), ("ab", "ab")]
        assert bpe.train({"aaa": 1}, 2) == [("a", "a"), ("aa", "a")]

    def test_training_says_so_when_the_words_run_out(self):
        with pytest.raises(ValueError, match="1 words give 1 merges; 2 are needed"):
            bpe.train({"ab": 1}, 2)


USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class TestTemplate:
    def test_thinking_is_off_unless_asked_for(self):
        assert render(messages=[USER], add_generation_prompt=True) == "〈|EOS|〉<user>Hi</user>\n<assistant></think>"
        assert render(messages=[USER], add_generation_prompt=True, enable_thinking=True).endswith("<assistant><think>")
        assert render(messages=[USER]).endswith("</user>\n")

    def test_a_system_message_comes_first_and_tools_are_listed_in_it(self):
        text = render(messages=[{"role": "system", "content": "Be brief."}, USER], tools=[TOOL])
        assert text.startswith("〈|EOS|〉<system>Be brief.\n\nFunctions")
        assert '<available_tools>\n{"name": "f", "parameters": {"type": "object"}}\n</available_tools>' in text

    def test_a_tool_call_is_asked_for_only_while_the_user_waits(self):
        asked = render(messages=[USER], tools=[TOOL], add_generation_prompt=True)
        assert asked.endswith("</user>\n<use_tools><assistant></think>")
        answered = [USER, {"role": "tool", "content": "21"}]
        text = render(messages=answered, tools=[TOOL], add_generation_prompt=True)
        assert text.endswith("<tool_response>21</tool_response>\n<assistant></think>")

    @pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
    def test_earlier_reasoning_is_kept_under_either_name(self, field):
        text = render(messages=[USER, {"role": "assistant", "content": "Yes.", field: "I see."}])
        assert text.endswith("<assistant><think>I see.</think>Yes.</assistant>\n")

    @pytest.mark.parametrize(
        ("arguments", "written"),
        [
            (
                {"a": "x y", "n": 2},
                "<arg_key>a</arg_key><arg_value>x y</arg_value><arg_key>n</arg_key><arg_value>2</arg_value>",
            ),
            ({}, ""),
            ('{"a": 1}', '<arg_key>arguments</arg_key><arg_value>{"a": 1}</arg_value>'),
        ],
    )
    def test_earlier_calls_are_written_as_the_model_writes_them(self, arguments, written):
        call = {"function": {"name": "f", "arguments": arguments}}
        text = render(messages=[USER, {"role": "assistant", "content": None, "tool_calls": [call]}])
        assert text.endswith(f"<assistant></think><tool_call>f{written}</tool_call></assistant>\n")

    def test_content_in_parts_is_joined_and_other_roles_speak_as_system(self):
        parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
        text = render(messages=[{"role": "user", "content": parts}, {"role": "system", "content": "c"}])
        assert text == "〈|EOS|〉<user>ab</user>\n<system>c</system>\n"

    @pytest.mark.parametrize("variant", Variant)
    def test_a_long_conversation_renders_and_encodes_as_under_transformers(self, variant, tokenizer):
        chat = json.loads((GOLDEN / f"{variant}.json").read_text())["chat"]
        with np.load(GOLDEN / f"{variant}.npz") as arrays:
            expected = arrays["chat.ids"].tolist()
        assert tokenizer.encode(render(**chat, add_generation_prompt=True)).ids == expected


class TestFailures:
    def test_a_scripted_word_that_stands_twice_is_refused(self, monkeypatch):
        monkeypatch.setattr(dialogue, "ANSWER", f"{dialogue.ANSWER} clear step.")
        with pytest.raises(ValueError, match="has two successors"):
            contents(Variant.PER_HEAD)

    def test_a_file_in_the_way_of_the_folder_is_a_disk_failure_with_its_exit_code(self, tmp_path, capsys):
        blocked = tmp_path / "file"
        blocked.write_text("mine")
        assert main(["--out", str(blocked / "folder")]) == 6
        assert "writing the reference checkpoint" in capsys.readouterr().err
        assert blocked.read_text() == "mine"

    @pytest.mark.parametrize("victim", ["config.json", INDEX])
    def test_a_full_disk_leaves_no_half_file_and_the_index_is_the_last_to_appear(self, monkeypatch, tmp_path, victim):
        write = Path.write_bytes

        def full(path: Path, content: bytes) -> int:
            if victim in path.name:
                write(path, content[:10])
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(path, content)

        monkeypatch.setattr(Path, "write_bytes", full)
        with pytest.raises(DiskFailure, match=f"{victim}: writing the reference checkpoint: no space left on device"):
            generate(tmp_path)
        names = {path.name for path in tmp_path.iterdir()}
        assert not names & {victim, INDEX}
        assert not [name for name in names if name.endswith(".partial")]
