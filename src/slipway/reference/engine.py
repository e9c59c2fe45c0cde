"""`python -m slipway.reference.engine MODEL …`: the CPU reference engine, in the dress of vLLM or SGLang.

Exit codes: 0 after SIGTERM, 130 after SIGINT, 2 for a bad command line, 9 when it cannot start (one line on stderr).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import logging
import logging.config
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipway import __version__
from slipway.errors import EngineFailed, SlipwayError
from slipway.reference import blas
from slipway.reference.answering import Served
from slipway.reference.api import AppSettings, build_app
from slipway.reference.chat import ChatText, generation_defaults
from slipway.reference.dress import Dress, VllmDress
from slipway.reference.dress_sglang import SglangDress
from slipway.reference.model import Laguna
from slipway.reference.parsers import REASONING_MARKS, TOOL_MARKS
from slipway.reference.scheduler import Limits, Scheduler
from slipway.reference.server import GRACE_S, LOGGING, Door, bound, end_now, listen, port_number, positive, serve
from slipway.reference.transfer import DecodeSide, PrefillSide

log = logging.getLogger("slipway.reference")

API_KEY_VARIABLE = "SLIPWAY_API_KEY"
"""Holds the key that clients must send; a command line would show it to every user of the host."""

SWITCH_S = 0.0005
"""How long the worker may keep the interpreter while the HTTP side has something to send; the default is 5 ms."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, once the server has ended."""
    args = parse_arguments(argv)
    logging.config.dictConfig(LOGGING)
    signal.signal(signal.SIGTERM, end_now)
    try:
        return _serve(args)
    except SlipwayError as error:
        sys.stderr.write(f"slipway.reference.engine: {' '.join(str(error).split())}\n")
        return EngineFailed.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags in `argv`, checked; a command line that cannot be meant ends the process with code 2."""
    parser = argparse.ArgumentParser(prog="slipway.reference.engine", allow_abbrev=False)
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="folder of the checkpoint")
    parser.add_argument("--model", "--model-path", help="the same, by flag")
    parser.add_argument("--served-model-name", help="name that requests use (default: the path)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=port_number, default=8000)
    parser.add_argument("--dress", choices=("vllm", "sglang"), default="vllm", help="which engine's answers to give")
    parser.add_argument("--reasoning-parser", choices=("poolside_v1",))
    parser.add_argument("--tool-call-parser", choices=("poolside_v1",))
    parser.add_argument("--default-chat-template-kwargs", type=_json_object, default={}, metavar="JSON")
    parser.add_argument("--max-model-len", type=positive, metavar="TOKENS", help="default: what the model was made for")
    parser.add_argument("--max-num-seqs", type=positive, default=16, help="sequences generated at once")
    parser.add_argument("--enable-prompt-tokens-details", action="store_true", help="cached tokens in usage (vllm)")
    parser.add_argument("--enable-cache-report", action="store_true", help="cached tokens in usage (sglang)")
    parser.add_argument("--enable-metrics", action="store_true", help="serve /metrics (sglang; vllm always does)")
    _add_disaggregation(parser)
    parser.epilog = f"{API_KEY_VARIABLE} in the environment holds the key that clients must send."
    args = parser.parse_args(argv)
    if (args.model_tag is None) == (args.model is None):
        parser.error("the folder of the checkpoint is needed once, as MODEL or by --model")
    args.model = args.model_tag if args.model is None else args.model
    of_sglang = ("enable_cache_report", "enable_metrics", "disaggregation_mode")
    foreign = {"vllm": of_sglang, "sglang": ("enable_prompt_tokens_details",)}
    for name in foreign[args.dress]:
        if getattr(args, name):
            parser.error(f"--{name.replace('_', '-')} is not a flag of the {args.dress} dress")
    return args


def _add_disaggregation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--disaggregation-mode", choices=("prefill", "decode"), help="half of a pair (sglang)")
    parser.add_argument("--disaggregation-transfer-backend", choices=("http",), default="http")
    parser.add_argument(
        "--disaggregation-bootstrap-port",
        type=port_number,
        default=8998,
        help="where a prefill server hands KV out",
    )
    parser.add_argument(
        "--disaggregation-timeout-s", type=positive, default=60, help="how long one half waits for the other"
    )


def load(args: argparse.Namespace, folder: Path) -> Served:
    """The checkpoint in `folder`, ready to answer.

    Raises: SlipwayError naming the file that is missing or wrong.
    """
    started_s = time.monotonic()
    log.info("Starting to load model %s...", folder)
    text = ChatText.load(folder)
    _check_marks(args, text, folder)
    defaults = generation_defaults(folder)
    log.info("Matrix products use %s thread(s)", blas.THREADS)
    model = Laguna.load(folder)
    log.info("Model loading took %.2f seconds", time.monotonic() - started_s)
    window = _window_tokens(args.max_model_len, model.config.max_position_embeddings)
    dress = _dress(args)
    pool = window * args.max_num_seqs
    transfer = _transfer(args, model)
    # A decode server computes no prompt, so there is nothing that a later one could begin with.
    limits = Limits(window, args.max_num_seqs, dress.block_size_tokens, pool, args.disaggregation_mode != "decode")
    log.info("KV cache size: %s tokens", f"{pool:,}")
    log.info("Maximum concurrency for %s tokens per request: %.2fx", f"{window:,}", pool / window)
    eos = defaults.eos_token_ids | frozenset(model.config.eos_token_ids)
    scheduler = Scheduler(model, limits, dress.stats(), eos)
    return Served(
        name=args.served_model_name or str(args.model),
        window_tokens=window,
        vocab_size=model.config.vocab_size,
        fingerprint=_fingerprint(args),
        dress=dress,
        text=text,
        defaults=defaults,
        scheduler=scheduler,
        eos_token_ids=eos,
        reasoning_parser=args.reasoning_parser is not None,
        tool_parser=args.tool_call_parser is not None,
        template_kwargs=args.default_chat_template_kwargs,
        transfer=transfer,
    )


def app_settings(args: argparse.Namespace) -> AppSettings:
    """What the HTTP side needs, from the flags and the environment."""
    told = {name: value for name, value in vars(args).items() if name not in {"model_tag", "model"}}
    return AppSettings(
        model_path=str(args.model),
        version=f"{__version__}+reference.{args.dress}",
        metrics=args.dress == "vllm" or args.enable_metrics,
        api_key=os.environ.get(API_KEY_VARIABLE) or None,
        server_args={
            **told,
            "model_path": str(args.model),
            "served_model_name": args.served_model_name or str(args.model),
            "tp_size": 1,
            "dp_size": 1,
            "disaggregation_mode": args.disaggregation_mode or "null",
        },
    )


def _serve(args: argparse.Namespace) -> int:
    with contextlib.ExitStack() as bindings:
        listener = bindings.enter_context(bound(args.host, args.port))
        bootstrap = None
        if args.disaggregation_mode == "prefill":
            bootstrap = bindings.enter_context(bound(args.host, args.disaggregation_bootstrap_port))
        served = load(args, Path(args.model))
        doors = [Door(build_app(served, app_settings(args)), listener)]
        listen(listener, args.host, args.port)
        if bootstrap is not None and isinstance(served.transfer, PrefillSide):
            listen(bootstrap, args.host, args.disaggregation_bootstrap_port)
            doors.append(Door(served.transfer.app(), bootstrap))
        sys.setswitchinterval(SWITCH_S)
        # A signal ends the answers under way, each with an error frame.
        code = asyncio.run(serve(doors, served.scheduler.stop))
        served.scheduler.stop(timeout_s=GRACE_S / 2)
        return code


def _transfer(args: argparse.Namespace, model: Laguna) -> PrefillSide | DecodeSide | None:
    if args.disaggregation_mode is None:
        return None
    side = PrefillSide if args.disaggregation_mode == "prefill" else DecodeSide
    return side(model, timeout_s=args.disaggregation_timeout_s)


def _dress(args: argparse.Namespace) -> Dress:
    if args.dress == "sglang":
        return SglangDress(report_cached=args.enable_cache_report, mode=args.disaggregation_mode or "unified")
    return VllmDress(report_cached=args.enable_prompt_tokens_details)


def _check_marks(args: argparse.Namespace, text: ChatText, folder: Path) -> None:
    wanted = {"--reasoning-parser": REASONING_MARKS, "--tool-call-parser": TOOL_MARKS}
    for flag, marks in wanted.items():
        parser = getattr(args, flag[2:].replace("-", "_"))
        missing = text.missing(marks) if parser else []
        if missing:
            problem = f"lacks the tokens {', '.join(missing)}"
            why = f"{flag} {parser} looks for them in the text"
            raise EngineFailed(folder / "tokenizer.json", problem, why, f"leave {flag} out, or fetch another revision")


def _window_tokens(asked: int | None, most: int) -> int:
    if asked is not None and asked > most:
        why = f"the model's max_position_embeddings is {most}"
        raise EngineFailed("--max-model-len", f"is too large (got {asked})", why, "leave it out or lower it")
    return most if asked is None else asked


def _fingerprint(args: argparse.Namespace) -> str:
    told = json.dumps(vars(args), sort_keys=True, default=str).encode()
    return f"slipway-{__version__}-{hashlib.sha256(told).hexdigest()[:8]}"


def _json_object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"is not a JSON object (got {text})")
    return value


if __name__ == "__main__":
    sys.exit(main())
