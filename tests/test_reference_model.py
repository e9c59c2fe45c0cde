"""The numpy Laguna: agrees with transformers, keeps its cache straight, talks as scripted."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from tokenizers import Tokenizer

from slipway.errors import UsageError
from slipway.reference.checkpoint import Variant, generate
from slipway.reference.model import Laguna, LagunaConfig
from slipway.reference.weights import load_tensors

GOLDEN = Path(__file__).parent / "data" / "golden"
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
