"""Text and tokens of one checkpoint: its tokenizer, and its chat template in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from slipway.errors import IntegrityMismatch, MissingFile, from_os_error
from slipway.reference.detokenizer import Detokenizer
from slipway.reference.parsers import REASONING_MARKS, TOOL_MARKS

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class TemplateRefusal(Exception):
    """The chat template does not take these messages; the text says why."""


@dataclass(frozen=True)
class GenerationDefaults:
    """What `generation_config.json` says: sampling values by name, and further end-of-sequence tokens."""

    sampling: Mapping[str, float] = field(default_factory=dict)
    eos_token_ids: frozenset[int] = frozenset()


class ChatText:
    """The tokenizer and chat template of a checkpoint."""

    def __init__(self, tokenizer: Tokenizer, template: str | None, special: Mapping[str, str]) -> None:
        """`special` are the template's own variables, as `bos_token`."""
        self._tokenizer = tokenizer
        self._special = special
        self._template = _environment().from_string(template) if template is not None else None
        added = tokenizer.get_added_tokens_decoder()
        self._hidden = frozenset(token_id for token_id, token in added.items() if token.special)
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self._longest_token_characters = max(map(len, vocabulary), default=1)
        self._ids = {mark: vocabulary[mark] for mark in (*REASONING_MARKS, *TOOL_MARKS) if mark in vocabulary}

    @classmethod
    def load(cls, folder: Path) -> ChatText:
        """The text side of the checkpoint in `folder`.

        Raises: MissingFile, IntegrityMismatch, DiskFailure.
        """
        raw = _read(folder / "tokenizer.json")
        if raw is None:
            raise MissingFile(
                folder / "tokenizer.json",
                "no such file",
                "the engine needs the tokenizer",
                "fetch the checkpoint again",
            )
        try:
            tokenizer = Tokenizer.from_str(raw)
        except Exception as error:  # the tokenizers library raises nothing narrower
            raise IntegrityMismatch(
                folder / "tokenizer.json", f"is no tokenizer ({error})", "", "fetch the checkpoint again"
            ) from error
        config = _read_json(folder / "tokenizer_config.json")
        template = _read(folder / "chat_template.jinja")
        if template is None and isinstance(config.get("chat_template"), str):
            template = config["chat_template"]
        special = {name: text for name in SPECIAL_TOKENS if (text := _token_text(config.get(name))) is not None}
        try:
            return cls(tokenizer, template, special)
        except jinja2.TemplateError as error:
            raise IntegrityMismatch(
                folder / "chat_template.jinja", f"is no template ({error})", "", "fetch the checkpoint again"
            ) from error

    def missing(self, marks: Sequence[str]) -> list[str]:
        """Those of `marks` that the vocabulary lacks."""
        return [mark for mark in marks if mark not in self._ids]

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The token ids of `text`; `special` adds what the tokenizer puts around a prompt (BOS)."""
        # Half a surrogate pair can stand in JSON but in no UTF-8 text.
        whole = text.encode("utf-8", "replace").decode()
        return list(self._tokenizer.encode(whole, add_special_tokens=special).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, special tokens spelled out."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def most_characters(self, tokens: int) -> int:
        """The longest text that `tokens` tokens can stand for, in characters."""
        return tokens * self._longest_token_characters

    def detokenizer(self, *, shown: Sequence[str], eos: frozenset[int], skip_special: bool) -> Detokenizer:
        """A fresh detokenizer; with `skip_special`, ends and special tokens have no text, but for the marks in `shown`."""
        kept = {self._ids[mark] for mark in shown if mark in self._ids}
        return Detokenizer(self.decode, (self._hidden | eos) - kept if skip_special else frozenset())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
    ) -> str:
        """The prompt for the next turn after `messages`.

        Raises: TemplateRefusal when there is no template or it refuses the messages.
        """
        if self._template is None:
            raise TemplateRefusal("the checkpoint has no chat template; use /v1/completions")
        variables = {"add_generation_prompt": True, **self._special, **kwargs}
        try:
            return self._template.render({**variables, "messages": list(map(_plain, messages)), "tools": tools or None})
        except TemplateRefusal:
            raise
        except Exception as error:
            # A template is a program that came with the weights; whatever it raises is about these messages.
            raise TemplateRefusal(f"the chat template refuses these messages: {error}") from error


def generation_defaults(folder: Path) -> GenerationDefaults:
    """The sampling defaults in `generation_config.json`; none where there is no such file.

    Raises: IntegrityMismatch, DiskFailure.
    """
    config = _read_json(folder / "generation_config.json")
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    sampling = {name: float(config[name]) for name in names if isinstance(config.get(name), int | float)}
    if config.get("do_sample") is False:
        sampling["temperature"] = 0.0
    eos = config.get("eos_token_id")
    ids = eos if isinstance(eos, list) else [eos]
    return GenerationDefaults(sampling, frozenset(token_id for token_id in ids if isinstance(token_id, int)))


def _environment() -> jinja2.Environment:
    """The sandbox that chat templates are written for: they cannot change what they are given, nor reach out of it."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now(UTC).strftime(pattern)
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes < and & for HTML; a prompt needs them as they are.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """`message` as templates expect it: text parts joined, `reasoning` under both names, arguments as an object."""
    plain = dict(message)
    content = plain.get("content")
    if isinstance(content, list):
        plain["content"] = "".join(map(_text_part, content))
    thought = plain.get("reasoning") or plain.get("reasoning_content")
    if thought:
        plain["reasoning"] = plain["reasoning_content"] = thought
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in plain["tool_calls"]]
    return plain


def _text_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type") in {"text", "input_text"} and isinstance(part.get("text"), str):
        return str(part["text"])
    raise TemplateRefusal("a content part is not text; the reference engine reads text only")


def _plain_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _token_text(value: Any) -> str | None:
    """A special token as `tokenizer_config.json` spells it: a string, or an object with its content."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise IntegrityMismatch(
            file, f"is not UTF-8 text (byte {error.start})", "", "fetch the checkpoint again"
        ) from None
    except OSError as error:
        raise from_os_error(error, file, "reading the checkpoint") from error


def _read_json(file: Path) -> dict[str, Any]:
    raw = _read(file)
    if raw is None:
        return {}
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise IntegrityMismatch(file, f"is not JSON ({error})", "", "fetch the checkpoint again") from None
    return value if isinstance(value, dict) else {}
