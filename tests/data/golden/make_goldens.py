"""Writes the golden logits beside this file: what transformers' own Laguna computes on the reference checkpoint.

A development tool, not run by the tests. It needs torch, transformers, safetensors, tokenizers, jinja2, pydantic and
rich in a virtual environment of its own, and this repository's src/ on the path:

    PYTHONPATH=src python tests/data/golden/make_goldens.py

Run it again only when the generator's bytes change on purpose; the files say with which versions they were made.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from slipway.reference.checkpoint import Variant, contents, generate

HERE = Path(__file__).resolve().parent

VOCAB_STRIDE = 3
"""Every third logit is kept: enough to see any error, and the files stay small."""

LENGTHS = {"short": 5, "window": 150, "beyond-original": 1300}
"""Random prompts: shorter and longer than the sliding window (64), and past YaRN's original context (512)."""

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CHAT = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Is it <warm> in Lisbon & why?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I look it up.",
            "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Lisbon", "days": 2}}}],
        },
        {"role": "tool", "content": "21 °C"},
        {"role": "assistant", "content": "Yes, 21 °C."},
        {"role": "user", "content": "And tomorrow?"},
    ],
    "tools": [TOOL],
    "enable_thinking": True,
}


def main() -> None:
    for variant in Variant:
        with tempfile.TemporaryDirectory() as folder:
            generate(Path(folder), variant)
            arrays = golden(Path(folder))
        about = {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "dtype": "float32",
            "attention": "eager",
            "vocab_stride": VOCAB_STRIDE,
            "chat": CHAT,
            "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(contents(variant).items())},
        }
        (HERE / f"{variant}.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
        np.savez_compressed(HERE / f"{variant}.npz", **arrays)


def golden(folder: Path) -> dict[str, np.ndarray]:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompts = {name: random_ids(name, length) for name, length in LENGTHS.items()}
    encoded = tokenizer.apply_chat_template(
        CHAT["messages"],
        tools=CHAT["tools"],
        enable_thinking=CHAT["enable_thinking"],
        add_generation_prompt=True,
        return_dict=True,
    )
    prompts["chat"] = np.array(encoded["input_ids"], dtype=np.int64)
    arrays = {}
    for name, ids in prompts.items():
        positions = np.unique([0, len(ids) // 3, 2 * len(ids) // 3, len(ids) - 1])
        with torch.no_grad():
            logits = model(torch.tensor(ids)[None]).logits[0].numpy()[positions]
        arrays |= {
            f"{name}.ids": ids.astype(np.int16),
            f"{name}.positions": positions.astype(np.int16),
            f"{name}.best": logits.argmax(axis=-1).astype(np.int16),
            f"{name}.logits": logits[:, ::VOCAB_STRIDE],
        }
    return arrays


def random_ids(name: str, length: int) -> np.ndarray:
    raw = np.frombuffer(hashlib.shake_256(name.encode()).digest(2 * length), "<u2")
    return raw.astype(np.int64) % 2048


if __name__ == "__main__":
    main()
