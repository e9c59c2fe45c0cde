"""The numpy Laguna: agrees with transformers, keeps its cache straight, talks as scripted, refuses what it cannot compute."""

from __future__ import annotations

import copy
import json
import re
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from slipway.errors import DiskFailure, IntegrityMismatch, MissingFile, UsageError
from slipway.reference.checkpoint import Variant, generate
from slipway.reference.model import Laguna, LagunaConfig
from slipway.reference.tensors import Stored, safetensors
from slipway.reference.weights import load_tensors

GOLDEN = Path(__file__).parent / "data" / "golden"
INDEX = "model.safetensors.index.json"
CASES = ["short", "window", "beyond-original", "chat"]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
USER = {"role": "user", "content": "What is the tide doing at 7 tonight?"}
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Lisbon"}}}]}

both = pytest.mark.parametrize("variant", Variant)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Variant, Path]:
    return {variant: generate(tmp_path_factory.mktemp(variant), variant).folder for variant in Variant}


@pytest.fixture(scope="module")
def models(folders: dict[Variant, Path]) -> dict[Variant, Laguna]:
    return {variant: Laguna.load(folder) for variant, folder in folders.items()}


@pytest.fixture(scope="module")
def tokenizer(folders: dict[Variant, Path]) -> Tokenizer:
    return Tokenizer.from_file(str(folders[Variant.PER_HEAD] / "tokenizer.json"))


def relative_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


def random_ids(count: int, seed: int = 5) -> list[int]:
    return np.random.default_rng(seed).integers(64, 2048, count).tolist()


class TestGoldens:
    @both
    @pytest.mark.parametrize("case", CASES)
    def test_logits_agree_with_transformers_at_every_recorded_position(self, models, variant, case):
        stride = json.loads((GOLDEN / f"{variant}.json").read_text())["vocab_stride"]
        with np.load(GOLDEN / f"{variant}.npz") as arrays:
            ids, positions, best, logits = (arrays[f"{case}.{key}"] for key in ("ids", "positions", "best", "logits"))
        ours = models[variant].all_logits(ids.tolist(), models[variant].cache())[positions]
        for ours_here, theirs_here in zip(ours[:, ::stride], logits, strict=True):
            assert relative_error(ours_here, theirs_here) < 1e-4
        assert ours.argmax(axis=-1).tolist() == best.tolist()

    def test_goldens_reach_past_the_window_and_past_the_original_context(self, models):
        for variant, model in models.items():
            with np.load(GOLDEN / f"{variant}.npz") as arrays:
                longest = max(int(arrays[f"{case}.positions"].max()) for case in CASES)
            for layer in model.config.layers:
                assert longest > 2 * max(layer.rope.original_max_position, layer.window_tokens or 0)

    @pytest.mark.parametrize(
        ("variant", "path", "value"),
        [
            (Variant.PER_HEAD, ("rope_parameters", "full_attention", "attention_factor"), 1.3),
            (Variant.PER_HEAD, ("rope_parameters", "full_attention", "factor"), 16.0),
            (Variant.PER_HEAD, ("rope_parameters", "full_attention", "original_max_position_embeddings"), 1024),
            (Variant.PER_HEAD, ("rope_parameters", "full_attention", "partial_rotary_factor"), 1.0),
            (Variant.PER_HEAD, ("rope_parameters", "sliding_attention", "rope_theta"), 500000.0),
            (Variant.PER_HEAD, ("sliding_window",), 65),
            (Variant.PER_HEAD, ("moe_routed_scaling_factor",), 2.25),
            (Variant.PER_HEAD, ("num_experts_per_tok",), 3),
            (Variant.PER_ELEMENT, ("rope_parameters", "full_attention", "attention_factor"), 1.35),
            (Variant.PER_ELEMENT, ("rope_parameters", "full_attention", "beta_fast"), 32.0),
        ],
    )
    def test_each_architecture_key_moves_the_logits_far_beyond_the_tolerance(
        self, folders, models, variant, path, value
    ):
        content = json.loads((folders[variant] / "config.json").read_text())
        inner = content
        for key in path[:-1]:
            inner = inner[key]
        assert inner.get(path[-1]) != value
        inner[path[-1]] = value
        changed = LagunaConfig.from_json(content)
        other = Laguna(changed, load_tensors(folders[variant], changed.tensor_shapes()))
        ids = random_ids(300)
        right, wrong = (model.all_logits(ids, model.cache()) for model in (models[variant], other))
        assert np.median(np.abs(right - wrong).max(axis=-1) / np.abs(right).max(axis=-1)) > 1e-3


class TestCache:
    @both
    def test_token_by_token_equals_one_pass(self, models, variant):
        model, ids = models[variant], random_ids(150)
        cache = model.cache()
        stepwise = np.stack([model.logits([one], cache) for one in ids])
        assert cache.length == 150
        assert relative_error(stepwise, model.all_logits(ids, model.cache())) < 1e-5

    @both
    def test_a_long_prompt_in_uneven_pieces_equals_one_call(self, models, variant):
        model, ids = models[variant], random_ids(700)
        cache = model.cache()
        for piece in (ids[:1], ids[1:300], ids[300:301], ids[301:]):
            last = model.logits(piece, cache)
        whole = model.all_logits(ids, model.cache())
        assert whole.shape == (700, 2048)
        assert relative_error(last, whole[-1]) < 1e-5

    @both
    def test_a_prefix_continues_like_a_fresh_cache_and_leaves_its_source_alone(self, models, variant):
        model, ids = models[variant], random_ids(200)
        source = model.cache()
        model.logits(ids, source)
        branch = source.prefix(120)
        other = random_ids(50, seed=6)
        branched = model.logits(other, branch)
        assert relative_error(branched, model.logits(ids[:120] + other, model.cache())) < 1e-5
        assert (source.length, branch.length) == (200, 170)
        assert relative_error(model.logits(other, source), model.logits(ids + other, model.cache())) < 1e-5

    def test_the_source_may_grow_while_its_prefix_waits(self, models):
        model, ids = models[Variant.PER_HEAD], random_ids(100)
        source = model.cache()
        model.logits(ids, source)
        waiting = source.prefix(100)
        model.logits(random_ids(20, seed=7), source)
        tail = random_ids(20, seed=8)
        assert relative_error(model.logits(tail, waiting), model.logits(ids + tail, model.cache())) < 1e-5

    def test_a_prefix_longer_than_the_cache_is_refused(self, models):
        with pytest.raises(ValueError, match="a prefix of 1 tokens was asked of a cache of 0"):
            models[Variant.PER_HEAD].cache().prefix(1)

    def test_threads_with_their_own_caches_do_not_disturb_each_other(self, models):
        model = models[Variant.PER_HEAD]

        def run(seed: int) -> np.ndarray:
            cache = model.cache()
            return np.stack([model.logits([one], cache) for one in random_ids(40, seed)])

        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(run, range(4)))
        for seed, result in enumerate(together):
            assert relative_error(result, run(seed)) < 1e-6

    @pytest.mark.parametrize(
        ("ids", "message"),
        [([], "there are none"), ([2048], "got 2048"), ([5, -1], "got -1"), ([2] * 16385, "got 16385 tokens")],
    )
    def test_what_cannot_be_computed_is_refused_and_the_cache_is_unchanged(self, models, ids, message):
        model = models[Variant.PER_HEAD]
        cache = model.cache()
        with pytest.raises(UsageError, match=message):
            model.logits(ids, cache)
        assert cache.length == 0


class TestDialogue:
    """Greedy decoding through the chat template."""

    def complete(self, model: Laguna, tokenizer: Tokenizer, folder: Path, limit: int = 64, **values: Any) -> str:
        environment = jinja2.Environment()
        environment.filters["tojson"] = json.dumps
        template = environment.from_string((folder / "chat_template.jinja").read_text())
        prompt = template.render(add_generation_prompt=True, **values)
        return tokenizer.decode(self.greedy(model, tokenizer.encode(prompt).ids, limit))

    @staticmethod
    def greedy(model: Laguna, ids: list[int], limit: int, *, ignore_eos: bool = False) -> list[int]:
        cache = model.cache()
        produced: list[int] = []
        logits = model.logits(ids, cache)
        while len(produced) < limit:
            produced.append(int(logits.argmax()))
            if not ignore_eos and produced[-1] in model.config.eos_token_ids:
                break
            logits = model.logits(produced[-1:], cache)
        return produced

    @both
    def test_without_thinking_it_answers_and_stops(self, models, folders, tokenizer, variant):
        text = self.complete(models[variant], tokenizer, folders[variant], messages=[USER])
        assert re.fullmatch(r"This answer comes from a tiny Laguna [^<]*\.</assistant>", text)

    @both
    def test_with_thinking_it_reasons_answers_and_stops_within_32_tokens(self, models, folders, tokenizer, variant):
        text = self.complete(models[variant], tokenizer, folders[variant], 32, messages=[USER], enable_thinking=True)
        assert re.fullmatch(r"I read the request, [^<]*\.</think>This answer [^<]*\.</assistant>", text)

    @both
    @pytest.mark.parametrize("thinking", [False, True])
    def test_with_tools_at_hand_it_writes_one_well_formed_call(self, models, folders, tokenizer, variant, thinking):
        values = {"messages": [USER], "tools": TOOLS, "enable_thinking": thinking}
        text = self.complete(models[variant], tokenizer, folders[variant], **values)
        reasoning, _, rest = text.rpartition("</think>")
        assert bool(reasoning) is thinking
        assert rest == (
            "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Lisbon</arg_value></tool_call></assistant>"
        )

    @both
    def test_after_the_tool_has_answered_it_answers_too(self, models, folders, tokenizer, variant):
        messages = [USER, CALL, {"role": "tool", "content": "sunny"}]
        text = self.complete(models[variant], tokenizer, folders[variant], messages=messages, tools=TOOLS)
        assert text.startswith("This answer comes")

    @both
    def test_tools_are_still_called_after_thousands_of_words(self, models, folders, tokenizer, variant):
        long = {"role": "user", "content": "lots of words about everything under the sun " * 150}
        text = self.complete(models[variant], tokenizer, folders[variant], 10, messages=[long], tools=TOOLS)
        assert text.startswith("<tool_call>get_weather")

    @both
    def test_past_the_end_of_a_turn_the_text_goes_on_and_does_not_collapse(self, models, tokenizer, variant):
        prompt = tokenizer.encode("〈|EOS|〉<user>Hi</user>\n<assistant></think>").ids
        produced = self.greedy(models[variant], prompt, 500, ignore_eos=True)
        after = produced[produced.index(24) + 1 :]
        assert len(set(after)) > 200
        assert not set(after) & set(range(64))
        assert "Morning tide lifts oak hulls above gravel." in tokenizer.decode(after)

    @both
    def test_raw_text_of_any_kind_is_continued_with_the_log_and_never_ends(self, models, variant):
        for seed in range(3):
            produced = self.greedy(models[variant], random_ids(30, seed), 120)
            assert len(produced) == 120
            assert len(set(produced)) > 100


class TestConfig:
    @pytest.mark.parametrize(
        ("change", "key"),
        [
            ({"model_type": "llama"}, "model_type"),
            ({"hidden_act": "gelu"}, "hidden_act"),
            ({"attention_bias": True}, "attention_bias"),
            ({"tie_word_embeddings": True}, "tie_word_embeddings"),
            ({"moe_router_logit_softcapping": 30.0}, "moe_router_logit_softcapping"),
            ({"gating": "per-layer"}, "gating"),
            ({"gating": False}, "gating"),
            ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
            ({"layer_types": ["full_attention"] * 3}, "layer_types"),
            ({"layer_types": ["linear_attention"] * 4}, "layer_types"),
            ({"mlp_layer_types": ["dense", "sparse", "sparse", "moe"]}, "mlp_layer_types"),
            ({"num_attention_heads_per_layer": [8, 12, 11, 8]}, "num_attention_heads_per_layer"),
            ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
            ({"sliding_window": 0}, "sliding_window"),
            ({"vocab_size": "2048"}, "vocab_size"),
            ({"rms_norm_eps": -1}, "rms_norm_eps"),
            ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "rope_parameters.full_attention"),
        ],
    )
    def test_what_the_model_does_not_compute_is_refused_by_name(self, folders, change, key):
        content = json.loads((folders[Variant.PER_HEAD] / "config.json").read_text())
        with pytest.raises(UsageError, match=rf"^config\.json: {re.escape(key)}: ") as caught:
            LagunaConfig.from_json({**content, **change})
        assert caught.value.exit_code == 2

    @pytest.mark.parametrize(
        ("change", "key"),
        [
            ({"rope_type": "longrope"}, "rope_type"),
            ({"mscale": 1.0}, "mscale"),
            ({"rope_theta": None}, "rope_theta"),
            ({"factor": 0}, "factor"),
            ({"partial_rotary_factor": 0.1}, "partial_rotary_factor"),
        ],
    )
    def test_rotary_features_that_it_does_not_know_are_refused_by_name(self, folders, change, key):
        content = json.loads((folders[Variant.PER_HEAD] / "config.json").read_text())
        content["rope_parameters"]["full_attention"] |= change
        with pytest.raises(UsageError, match=rf"rope_parameters\.full_attention\.{key}: "):
            LagunaConfig.from_json(content)

    def test_defaults_are_those_of_transformers(self, folders):
        content = json.loads((folders[Variant.PER_ELEMENT] / "config.json").read_text())
        bare = copy.deepcopy(content)
        for key in ("layer_types", "num_attention_heads_per_layer", "moe_routed_scaling_factor", "rms_norm_eps"):
            del bare[key]
        bare["rope_parameters"]["full_attention"] |= {"factor": None, "beta_slow": None}
        assert LagunaConfig.from_json(bare) == LagunaConfig.from_json(content)
        del bare["mlp_layer_types"], bare["gating"]
        defaults = LagunaConfig.from_json({**bare, "eos_token_id": 2})
        assert [layer.sparse for layer in defaults.layers] == [False, True, True, True, True]
        assert not defaults.gate_per_element
        assert defaults.eos_token_ids == (2,)

    def test_what_a_server_needs_to_know_is_there(self, models):
        config = models[Variant.PER_HEAD].config
        assert (config.vocab_size, config.max_position_embeddings) == (2048, 16384)
        assert (config.eos_token_ids, config.bos_token_id, config.pad_token_id) == ((2, 24), 2, 9)


def edit_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


class TestDamage:
    @pytest.fixture
    def folder(self, folders: dict[Variant, Path], tmp_path: Path) -> Path:
        return Path(shutil.copytree(folders[Variant.PER_HEAD], tmp_path / "copy"))

    def test_a_missing_shard_is_named(self, folder):
        (folder / "model-00003-of-00004.safetensors").unlink()
        with pytest.raises(MissingFile, match=r"model-00003-of-00004.safetensors: no such shard; .* names it"):
            Laguna.load(folder)

    @pytest.mark.parametrize("name", ["config.json", INDEX])
    def test_a_missing_config_or_index_is_named(self, folder, name):
        (folder / name).unlink()
        with pytest.raises(MissingFile, match=name):
            Laguna.load(folder)

    def test_a_folder_in_the_place_of_a_shard_is_a_disk_failure(self, folder):
        shard = folder / "model-00001-of-00004.safetensors"
        shard.unlink()
        shard.mkdir()
        with pytest.raises(DiskFailure, match="reading a shard"):
            Laguna.load(folder)

    @pytest.mark.parametrize("kept", [0, 7, 100, 20_000, -2, -1])
    def test_a_truncated_shard_is_named_wherever_it_ends(self, folder, kept):
        shard = folder / "model-00002-of-00004.safetensors"
        shard.write_bytes(shard.read_bytes()[:kept])
        with pytest.raises(IntegrityMismatch, match=r"model-00002-of-00004\.safetensors: is truncated"):
            Laguna.load(folder)

    @pytest.mark.parametrize(
        ("start", "message"),
        [
            (b"<!DOCTYPE html><title>503</title>", "no safetensors"),
            (struct.pack("<Q", 4) + b"nope", "not JSON"),
            (struct.pack("<Q", 2) + b"[]", "no JSON object"),
            (struct.pack("<Q", 13) + b'{"a":1,"a":2}', "a key stands twice"),
            (struct.pack("<Q", 7) + b'{"a":1}', "no two data_offsets"),
        ],
    )
    def test_a_shard_that_is_something_else_is_named(self, folder, start, message):
        shard = folder / "model-00001-of-00004.safetensors"
        shard.write_bytes(start + bytes(1000))
        with pytest.raises(IntegrityMismatch, match=f"model-00001-of-00004.safetensors: .*{message}"):
            Laguna.load(folder)

    def test_bytes_behind_the_last_tensor_are_noticed(self, folder):
        shard = folder / "model-00004-of-00004.safetensors"
        shard.write_bytes(shard.read_bytes() + b"\0")
        with pytest.raises(IntegrityMismatch, match="the header describes"):
            Laguna.load(folder)

    @pytest.mark.parametrize(
        ("entry", "message"),
        [
            ({"dtype": "F8_E4M3"}, "stored as 'F8_E4M3'"),
            ({"shape": [256, 2048]}, r"has the shape \[256, 2048\]"),
            ({"shape": [2047, 256]}, "fits"),
            ({"shape": "2048"}, "no shape"),
            ({"data_offsets": [8, 1048584]}, "stands at 8"),
            ({"data_offsets": [0, -1]}, "no two data_offsets"),
        ],
    )
    def test_a_tensor_that_is_not_what_it_should_be_is_named(self, folder, entry, message):
        shard = folder / "model-00001-of-00004.safetensors"
        edit_header(shard, lambda header: header["lm_head.weight"].update(entry))
        with pytest.raises(IntegrityMismatch, match=f"model-00001-of-00004.safetensors: lm_head.weight .*{message}"):
            Laguna.load(folder)

    def test_a_config_of_the_other_gating_does_not_fit_the_weights(self, folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "gating": "per-element"}))
        with pytest.raises(
            IntegrityMismatch, match=r"g_proj.weight has the shape \[8, 256\]; config.json means \[256, 256\]"
        ):
            Laguna.load(folder)

    def test_a_config_with_fewer_layers_leaves_tensors_over_and_one_with_more_lacks_some(self, folder):
        fewer = {"num_hidden_layers": 3}
        for key in ("layer_types", "mlp_layer_types", "num_attention_heads_per_layer"):
            fewer[key] = json.loads((folder / "config.json").read_text())[key][:3]
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **fewer}))
        with pytest.raises(IntegrityMismatch, match=r"layers\.3\..*, which config.json does not call for"):
            Laguna.load(folder)
        more = {key: [*config[key], config[key][-1]] for key in fewer if key != "num_hidden_layers"}
        (folder / "config.json").write_text(json.dumps({**config, **more, "num_hidden_layers": 5}))
        with pytest.raises(IntegrityMismatch, match=r"index.json: names no shard for model\.layers\.4\."):
            Laguna.load(folder)

    def test_a_shard_that_lacks_or_exceeds_the_index_is_named(self, folder):
        shard = folder / "model-00001-of-00004.safetensors"
        edit_header(shard, lambda header: header.update({"other.weight": header.pop("lm_head.weight")}))
        with pytest.raises(IntegrityMismatch, match=r"00001-of-00004.safetensors: lacks the tensor lm_head.weight"):
            Laguna.load(folder)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "not JSON"),
            ("[]", "no weight_map"),
            ('{"weight_map": {}}', "no weight_map"),
            ('{"weight_map": {"a": "../b.safetensors"}}', "no plain path"),
            ('{"weight_map": {"a": "/b.safetensors"}}', "no plain path"),
            ('{"weight_map": {"a": 1}}', "no plain path"),
        ],
    )
    def test_an_index_that_cannot_be_followed_is_named(self, folder, content, message):
        (folder / INDEX).write_text(content)
        with pytest.raises(IntegrityMismatch, match=f"{INDEX}: .*{message}"):
            Laguna.load(folder)

    @pytest.mark.parametrize("content", ["{", "[]", "\xff"])
    def test_a_config_that_is_no_json_object_is_named(self, folder, content):
        (folder / "config.json").write_bytes(content.encode("latin-1"))
        with pytest.raises(IntegrityMismatch, match=r"config.json: is not (JSON|a JSON object)"):
            Laguna.load(folder)


TENSORS = {
    "a": Stored("BF16", (2, 3), np.arange(6, dtype="<u2").tobytes()),
    "b": Stored("F32", (2,), np.array([1.5, -2], "<f4").tobytes()),
    "c": Stored("F16", (1, 1), np.array([0.25], "<f2").tobytes()),
}
SHAPES = {name: tensor.shape for name, tensor in TENSORS.items()}


class TestSafetensors:
    def write(self, folder: Path, content: bytes) -> Path:
        (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(TENSORS, "one.safetensors")}))
        (folder / "one.safetensors").write_bytes(content)
        return folder

    def test_three_number_formats_become_float32(self, tmp_path):
        loaded = load_tensors(self.write(tmp_path, safetensors(TENSORS)), SHAPES)
        assert {str(tensor.dtype) for tensor in loaded.values()} == {"float32"}
        assert (loaded["b"].tolist(), loaded["c"].tolist()) == ([1.5, -2.0], [[0.25]])
        assert (loaded["a"].view(np.uint32) >> 16).tolist() == [[0, 1, 2], [3, 4, 5]]

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
    @given(data=st.data())
    def test_a_damaged_header_or_length_never_escapes_as_another_error(self, tmp_path, data):
        content = bytearray(safetensors(TENSORS))
        if data.draw(st.booleans()):
            del content[data.draw(st.integers(0, len(content) - 1)) :]
        else:
            for _ in range(data.draw(st.integers(1, 3))):
                content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        try:
            loaded = load_tensors(self.write(tmp_path, bytes(content)), SHAPES)
        except IntegrityMismatch as error:
            assert "one.safetensors" in error.place
        else:
            assert {name: tensor.shape for name, tensor in loaded.items()} == SHAPES
