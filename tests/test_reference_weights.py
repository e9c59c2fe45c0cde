"""What the numpy Laguna refuses: configurations that it does not compute, and checkpoints that are incomplete or damaged."""

from __future__ import annotations

import copy
import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipway.errors import DiskFailure, IntegrityMismatch, MissingFile, UsageError
from slipway.reference.checkpoint import Variant, generate
from slipway.reference.model import Laguna, LagunaConfig
from slipway.reference.tensors import Stored, safetensors
from slipway.reference.weights import load_tensors

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Variant, Path]:
    return {variant: generate(tmp_path_factory.mktemp(variant), variant).folder for variant in Variant}


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

    def test_what_a_server_needs_to_know_is_there(self, folders):
        config = LagunaConfig.load(folders[Variant.PER_HEAD])
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
