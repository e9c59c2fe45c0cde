"""A byte-level BPE tokenizer in the `tokenizer.json` form, trained on counted words by integer arithmetic alone."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

PRE_TOKEN = r"\s?[\p{L}_]+[.,;:!?]?|\p{N}|[^\s\p{L}\p{N}_]+|\s+"  # noqa: S105  (a pattern, no secret)
"""How text falls into pieces before merging: a word keeps the blank before it and the punctuation after it."""


def pieces(text: str) -> list[str]:
    """The pieces of plain ASCII `text`, as `PRE_TOKEN` cuts it."""
    return re.findall(r"\s?[A-Za-z_]+[.,;:!?]?|[0-9]|[^\sA-Za-z0-9_]+|\s+", text)


def spelled(text: str) -> str:
    """`text` as its UTF-8 bytes are written in a byte-level vocabulary, one printable letter a byte."""
    return "".join(_BYTE_LETTERS[byte] for byte in text.encode())


def train(counts: Mapping[str, int], merges: int) -> list[tuple[str, str]]:
    """The first `merges` merges that byte-pair encoding learns from spelled words and their counts.

    The commonest pair wins; the smaller pair wins a tie, so the result depends on nothing but the arguments.

    Raises: ValueError when the words are used up before.
    """
    words = {word: list(word) for word in sorted(counts)}
    pair_counts: Counter[tuple[str, str]] = Counter()
    places: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for word, symbols in words.items():
        for pair in pairwise(symbols):
            pair_counts[pair] += counts[word]
            places[pair].add(word)
    learned: list[tuple[str, str]] = []
    while len(learned) < merges:
        best = min(pair_counts, key=lambda pair: (-pair_counts[pair], pair), default=None)
        if best is None:
            raise ValueError(f"{len(words)} words give {len(learned)} merges; {merges} are needed")
        learned.append(best)
        for word in places.pop(best):
            symbols = words[word]
            for pair in pairwise(symbols):
                pair_counts[pair] -= counts[word]
                if pair_counts[pair] == 0:
                    del pair_counts[pair]
            words[word] = symbols = _merged(symbols, best)
            for pair in pairwise(symbols):
                pair_counts[pair] += counts[word]
                places[pair].add(word)
    return learned


def vocabulary(merges: list[tuple[str, str]], first_id: int) -> dict[str, int]:
    """The ids of the 256 bytes and of every merge, counting from `first_id`."""
    letters = [_BYTE_LETTERS[byte] for byte in range(256)]
    return {token: first_id + position for position, token in enumerate([*letters, *map("".join, merges)])}


def tokenizer_json(
    merges: list[tuple[str, str]], first_id: int, special: Mapping[int, str], markup: Mapping[int, str]
) -> dict[str, Any]:
    """The content of `tokenizer.json`: `special` tokens vanish when text is decoded, `markup` tokens stay visible."""
    added: list[dict[str, Any]] = [
        {
            "id": token_id,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": token_id in special,
        }
        for token_id, content in sorted({**special, **markup}.items())
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PRE_TOKEN}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {entry["content"]: entry["id"] for entry in added} | vocabulary(merges, first_id),
            "merges": [list(pair) for pair in merges],
        },
    }


def _byte_letters() -> dict[int, str]:
    """The letter of each byte: itself where it is printable in Latin-1, else the next unused one from U+0100 on.

    Source: the byte-level scheme that GPT-2 introduced, as the `tokenizers` library implements it.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)}


_BYTE_LETTERS = _byte_letters()


def _merged(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    """`symbols` with each `pair`, from the left, made one."""
    result: list[str] = []
    position = 0
    while position < len(symbols):
        if tuple(symbols[position : position + 2]) == pair:
            result.append(symbols[position] + symbols[position + 1])
            position += 2
        else:
            result.append(symbols[position])
            position += 1
    return result
