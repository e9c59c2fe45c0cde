"""Structure: what is wrong with a checkpoint is told from headers, index and config, and told by name."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from slipway.checkpoints import safetensors_header, structure
from slipway.errors import IntegrityMismatch, MissingFile, SlipwayError
from slipway.reference.hub_sample import write_sample, write_shard

SHARD = "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sample(tmp_path / "m")
    return tmp_path / "m"


def edit_json(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def shard_bytes(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_a_sound_checkpoint_is_counted(folder: Path) -> None:
    found = structure.check(folder)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert found == structure.Structure(shards=3, tensors=6, total_bytes=size)


def test_one_file_without_an_index_is_sound(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": (2, 3), "empty": (0, 4), "scalar": ()})
    assert structure.check(tmp_path).tensors == 3


def test_dtypes_that_numpy_lacks_are_read(tmp_path: Path) -> None:
    entries = {
        "a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]},
        "b": {"dtype": "F4", "shape": [4], "data_offsets": [4, 6]},
    }
    (tmp_path / "model.safetensors").write_bytes(shard_bytes(entries, bytes(range(6))))
    assert structure.check(tmp_path).tensors == 2


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n"), "LFS pointer"),
        (lambda path: path.write_bytes(b"<!DOCTYPE html><html>sign in</html>"), "HTML"),
        (lambda path: path.write_bytes(b'<?xml version="1.0"?><Error/>'), "HTML or XML"),
        (lambda path: path.write_bytes(b'{"error":"Access denied"}'), "JSON text"),
        (lambda path: path.write_bytes(bytes(8) + path.read_bytes()[8:]), "starts with zero bytes"),
        (lambda path: path.write_bytes(path.read_bytes()[:8] + bytes(path.stat().st_size - 8)), "header of zero"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "truncated: 1 of"),
        (lambda path: path.write_bytes(path.read_bytes()[:40]), "truncated: 40 bytes"),
        (lambda path: path.write_bytes(path.read_bytes()[:5]), "truncated: 5 bytes are too few"),
        (lambda path: path.write_bytes(b""), "truncated: 0 bytes"),
        (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "1 trailing bytes"),
        (lambda path: path.write_bytes(b"\xff" * 100), "claims a header"),
        (lambda path: path.write_bytes(shard_bytes(b"[]")), "not a JSON object"),
        (lambda path: path.write_bytes(shard_bytes(b'{"a":')), "not JSON"),
        (lambda path: path.write_bytes(shard_bytes(b'{"a":' * 20000)), "not JSON"),
        (lambda path: path.write_bytes(shard_bytes({"__metadata__": {"a": 1}})), "__metadata__"),
    ],
)
def test_a_spoiled_shard_is_named_with_what_it_is(folder: Path, spoil: Callable[[Path], object], said: str) -> None:
    spoil(folder / SHARD)
    with pytest.raises(IntegrityMismatch) as refused:
        structure.check(folder)
    assert said in str(refused.value)
    assert SHARD in str(refused.value)


def entry(begin: object, end: object, dtype: object = "F32", shape: object = (1,)) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("entries", "size"),
    [
        ({"a": entry(0, 4), "b": entry(8, 12)}, 12),  # hole
        ({"a": entry(0, 4), "b": entry(2, 6)}, 6),  # overlap
        ({"a": entry(4, 8)}, 8),  # starts late
        ({"a": entry(0, 4, "F33")}, 4),
        ({"a": entry(0, 4, ["F32"])}, 4),
        ({"a": entry(0, 4, shape=(2,))}, 4),
        ({"a": entry(0, 4, shape=(-1, -1))}, 4),
        ({"a": entry(0, 4, shape=(1.0,))}, 4),
        ({"a": entry(0, 4, shape=(True,))}, 4),
        ({"a": entry(0, 4), "b": entry(4, 8, shape=(True,))}, 8),
        ({"a": entry(0, 4, shape="1")}, 4),
        ({"a": entry(0, 4, shape=None)}, 4),
        ({"a": entry(False, 4)}, 4),
        ({"a": entry(0.0, 4)}, 4),
        ({"a": entry(-4, 0)}, 0),
        ({"a": entry("0", "4")}, 4),
        ({"a": entry(0, 1, "F4", (3,))}, 1),
        ({"a": {"dtype": "F32", "shape": [1]}}, 4),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2, 4]}}, 4),
        ({"a": [0, 4]}, 4),
        ({"a": None}, 4),
        ({"a": entry(0, 1 << 70, "U8", (1 << 70,))}, 4),
    ],
)
def test_a_header_that_does_not_add_up_is_refused(tmp_path: Path, entries: dict[str, object], size: int) -> None:
    (tmp_path / "model.safetensors").write_bytes(shard_bytes(entries, bytes(size)))
    with pytest.raises(IntegrityMismatch):
        structure.check(tmp_path)


def test_a_hole_on_disk_is_refused_unless_digests_are_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_shard(path, {"a": (1024, 1024)})
    whole = path.stat().st_size
    os.truncate(path, whole // 2)
    os.truncate(path, whole)
    with pytest.raises(IntegrityMismatch, match="holes on disk"):
        structure.check(tmp_path)
    assert structure.check(tmp_path, digests_known=True).tensors == 1


def test_a_shard_that_the_index_names_and_nobody_has_is_missing(folder: Path) -> None:
    (folder / SHARD).unlink()
    with pytest.raises(MissingFile, match=rf"{SHARD}: is absent, but {INDEX} places 2 tensors in it"):
        structure.check(folder)


def test_a_dangling_link_is_missing(folder: Path) -> None:
    (folder / SHARD).unlink()
    (folder / SHARD).symlink_to("nowhere")
    with pytest.raises(MissingFile, match="link to a file that does not exist"):
        structure.check(folder)


def test_a_pipe_in_a_shards_place_does_not_block(folder: Path) -> None:
    (folder / SHARD).unlink()
    os.mkfifo(folder / SHARD)
    with pytest.raises(IntegrityMismatch, match="not a regular file"):
        structure.check(folder)


def test_shards_of_an_older_set_are_stale(folder: Path) -> None:
    write_shard(folder / "model-00004-of-00004.safetensors", {"old": (1,)})
    with pytest.raises(IntegrityMismatch, match=r"model-00004-of-00004.safetensors: is a stale shard"):
        structure.check(folder)


def test_an_index_of_another_set_is_stale(folder: Path) -> None:
    for path in folder.glob("model-*"):
        path.rename(path.with_name(path.name.replace("00003.", "00004.")))
    with pytest.raises(IntegrityMismatch, match=r"index\.json: is stale: it names model-00001-of-00003"):
        structure.check(folder)


def test_several_shards_without_an_index_cannot_be_told_to_be_all(folder: Path) -> None:
    (folder / INDEX).unlink()
    with pytest.raises(MissingFile, match="nothing tells whether one is absent"):
        structure.check(folder)


def test_index_and_headers_must_agree_both_ways(folder: Path) -> None:
    def move(index: dict[str, object]) -> None:
        weight_map = index["weight_map"]
        assert isinstance(weight_map, dict)
        weight_map["model.ghost.weight"] = SHARD
        del weight_map["model.norm.weight"]

    edit_json(folder / INDEX, move)
    with pytest.raises(IntegrityMismatch) as refused:
        structure.check(folder)
    assert "lacks model.ghost.weight" in str(refused.value)
    assert "holds model.norm.weight" in str(refused.value)


def test_a_tensor_in_two_shards_is_refused(folder: Path) -> None:
    write_shard(folder / SHARD, {"model.embed_tokens.weight": (1,)})
    with pytest.raises(IntegrityMismatch, match=r"holds model.embed_tokens.weight, which model.safetensors.index"):
        structure.check(folder)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "sub/a.safetensors", "", "a\x00b"])
def test_an_index_that_leads_out_of_its_folder_is_refused(folder: Path, name: str) -> None:
    edit_json(folder / INDEX, lambda index: index["weight_map"].update(x=name))  # type: ignore[attr-defined]
    with pytest.raises(IntegrityMismatch, match="weight_map names"):
        structure.check(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', '{"weight_map": []}']
)
def test_an_index_without_a_map_is_refused(folder: Path, text: str) -> None:
    (folder / INDEX).write_text(text)
    with pytest.raises(IntegrityMismatch, match=INDEX):
        structure.check(folder)


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        ({"gating": "per-element"}, "asks for 96 rows"),
        ({"num_attention_heads_per_layer": [8, 6]}, "asks for 8 rows"),
        ({"gating": True, "num_attention_heads_per_layer": None, "num_attention_heads": 16}, "asks for 16 rows"),
    ],
)
def test_gate_rows_tie_the_weights_to_the_config(folder: Path, change: dict[str, object], rows: str) -> None:
    edit_json(folder / "config.json", lambda config: config.update(change))
    with pytest.raises(IntegrityMismatch, match=rows):
        structure.check(folder)


@pytest.mark.parametrize(
    ("change", "shape"),
    [({"gating": "per-element"}, 16), ({"gating": "per-head"}, 1), ({"gating": True}, 1), ({"gating": False}, 99)],
)
def test_gate_rows_that_the_config_asks_for_are_sound(folder: Path, change: dict[str, object], shape: int) -> None:
    edit_json(folder / "config.json", lambda config: config.update(change))
    edit_json(
        folder / INDEX, lambda index: index.update(weight_map={"layers.0.self_attn.g_proj.weight": "a.safetensors"})
    )
    for path in folder.glob("model-*"):
        path.unlink()
    write_shard(folder / "a.safetensors", {"layers.0.self_attn.g_proj.weight": (4 * shape, 64)})
    assert structure.check(folder).tensors == 1


def test_a_config_that_is_no_json_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(IntegrityMismatch, match=r"config.json: is not JSON"):
        structure.check(folder)


def test_a_folder_without_shards_is_missing_them(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="holds no"):
        structure.check(tmp_path)


def test_a_drafter_in_a_folder_of_its_own_is_checked_by_itself(folder: Path) -> None:
    write_sample(folder / "drafter", shards=2)
    assert structure.check(folder).shards == 5
    (folder / "drafter" / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(MissingFile, match="drafter/model-00001-of-00002"):
        structure.check(folder)


def test_everything_wrong_is_told_at_once(folder: Path) -> None:
    (folder / SHARD).write_bytes(b"")
    (folder / "model-00001-of-00003.safetensors").unlink()
    with pytest.raises(IntegrityMismatch) as refused:
        structure.check(folder)
    assert "2 files are wrong" in str(refused.value)
    assert "is absent" in str(refused.value)


def test_a_large_checkpoint_is_checked_in_little_time(tmp_path: Path) -> None:
    """A quarter of Laguna-M.1's experts, in sparse files; `benchmarks/checks.py` measures all of them."""
    shape, size = [1024, 4096], 1024 * 4096 * 2
    names = [f"model.layers.{n // 768 + 3}.mlp.experts.{n // 3 % 256}.w{n % 3}.weight" for n in range(17 * 256 * 3)]
    weight_map, texts = {}, []
    for shard in range(23):
        file, mine = f"model-{shard + 1:05}-of-00023.safetensors", names[shard::23]
        offsets = [[n * size, (n + 1) * size] for n in range(len(mine))]
        header = {n: {"dtype": "BF16", "shape": shape, "data_offsets": o} for n, o in zip(mine, offsets, strict=True)}
        texts.append(json.dumps(header).encode())
        (tmp_path / file).write_bytes(struct.pack("<Q", len(texts[-1])) + texts[-1])
        os.truncate(tmp_path / file, 8 + len(texts[-1]) + size * len(mine))
        weight_map |= dict.fromkeys(mine, file)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    texts.append((tmp_path / INDEX).read_bytes())
    parsing_s = cpu_s(lambda: [json.loads(text) for text in texts])
    found: list[structure.Structure] = []
    checking_s = min(cpu_s(lambda: found.append(structure.check(tmp_path, digests_known=True))) for _ in range(2))
    assert (found[0].shards, found[0].tensors) == (23, 13_056)
    assert checking_s < max(0.2, 3 * parsing_s)


def cpu_s(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


numbers = st.integers(-2, 40) | st.floats(allow_nan=True) | st.booleans() | st.none() | st.text(max_size=2)
shapes = st.lists(st.integers(0, 4) | numbers, max_size=3) | numbers
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "U8", "F4", "BF16"]) | numbers,
        "shape": shapes,
        "data_offsets": st.lists(st.integers(0, 32) | numbers, max_size=3) | numbers,
        "other": numbers,
    },
)


@settings(max_examples=60, deadline=None)
@given(
    header=st.dictionaries(st.text(max_size=3) | st.just("__metadata__"), entries | numbers, max_size=3),
    size=st.integers(0, 40),
)
def test_any_header_is_accepted_or_refused_in_our_words_and_never_against_the_library(
    tmp_path_factory: pytest.TempPathFactory, header: dict[str, object], size: int
) -> None:
    folder = tmp_path_factory.getbasetemp() / "header"
    folder.mkdir(exist_ok=True)
    path = folder / "model.safetensors"
    path.write_bytes(shard_bytes(header, bytes(size)))
    try:
        structure.check(folder)
    except SlipwayError:
        return
    try:
        with safe_open(path, framework="np"):
            pass
    except SafetensorError as error:
        pytest.fail(f"accepted what the library refuses: {error}")


@settings(max_examples=40, deadline=None)
@given(
    data=st.binary(max_size=60)
    | st.binary(max_size=40).map(shard_bytes)
    | st.text(max_size=30).map(lambda text: shard_bytes(text.encode()))
)
def test_any_bytes_are_refused_in_our_words(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "bytes"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(data)
    try:
        structure.check(folder)
    except SlipwayError as refused:
        assert "model.safetensors" in str(refused)


def sound_entries(counts: list[int]) -> tuple[dict[str, object], int]:
    end, header = 0, {}
    for number, count in enumerate(counts):
        header[f"t{number}"] = entry(end, end + 4 * count, shape=(count,))
        end += 4 * count
    return header, end


@settings(max_examples=30, deadline=None)
@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=6), order=st.randoms(use_true_random=False))
def test_a_sound_header_is_accepted_in_any_order(counts: list[int], order: object) -> None:
    header, end = sound_entries(counts)
    names = list(header)
    order.shuffle(names)  # type: ignore[attr-defined]
    text = json.dumps({name: header[name] for name in names}).encode()
    assert safetensors_header.parse(text, end).keys() == header.keys()
    with pytest.raises(safetensors_header.Unreadable):
        safetensors_header.parse(text, end + 1)
