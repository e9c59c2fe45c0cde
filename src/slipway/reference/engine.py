"""`python -m slipway.reference.engine MODEL …`: the CPU reference engine, in the dress of vLLM or SGLang.

Exit codes: 0 after SIGTERM, 130 after SIGINT, 2 for a bad command line, 9 when it cannot start (one line on stderr).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import hashlib
import json
import logging
import logging.config
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Never

import uvicorn

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

log = logging.getLogger("slipway.reference")

API_KEY_VARIABLE = "SLIPWAY_API_KEY"
"""Holds the key that clients must send; a command line would show it to every user of the host."""

GRACE_S = 1
"""How long answers under way may take to end after a signal."""

SWITCH_S = 0.0005
"""How long the worker may keep the interpreter while the HTTP side has something to send; the default is 5 ms."""

_LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "default": {
            "()": "uvicorn.logging.DefaultFormatter",
            "fmt": "%(levelprefix)s %(message)s",
            "use_colors": False,
        },
        "access": {
            "()": "uvicorn.logging.AccessFormatter",
            "fmt": '%(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s',
            "use_colors": False,
        },
    },
    "handlers": {
        "default": {"class": "logging.StreamHandler", "formatter": "default", "stream": "ext://sys.stderr"},
        "access": {"class": "logging.StreamHandler", "formatter": "access", "stream": "ext://sys.stderr"},
    },
    "loggers": {
        "uvicorn": {"handlers": ["default"], "level": "INFO", "propagate": False},
        "uvicorn.access": {"handlers": ["access"], "level": "INFO", "propagate": False},
        "slipway.reference": {"handlers": ["default"], "level": "INFO", "propagate": False},
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, once the server has ended."""
    args = parse_arguments(argv)
    logging.config.dictConfig(_LOGGING)
    signal.signal(signal.SIGTERM, _end_now)
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
    parser.add_argument("--port", type=_port, default=8000)
    parser.add_argument("--dress", choices=("vllm", "sglang"), default="vllm", help="which engine's answers to give")
    parser.add_argument("--reasoning-parser", choices=("poolside_v1",))
    parser.add_argument("--tool-call-parser", choices=("poolside_v1",))
    parser.add_argument("--default-chat-template-kwargs", type=_json_object, default={}, metavar="JSON")
    parser.add_argument(
        "--max-model-len", type=_positive, metavar="TOKENS", help="default: what the model was made for"
    )
    parser.add_argument("--max-num-seqs", type=_positive, default=16, help="sequences generated at once")
    parser.add_argument("--enable-prompt-tokens-details", action="store_true", help="cached tokens in usage (vllm)")
    parser.add_argument("--enable-cache-report", action="store_true", help="cached tokens in usage (sglang)")
    parser.add_argument("--enable-metrics", action="store_true", help="serve /metrics (sglang; vllm always does)")
    parser.epilog = f"{API_KEY_VARIABLE} in the environment holds the key that clients must send."
    args = parser.parse_args(argv)
    if (args.model_tag is None) == (args.model is None):
        parser.error("the folder of the checkpoint is needed once, as MODEL or by --model")
    args.model = args.model_tag if args.model is None else args.model
    foreign = {"vllm": ("enable_cache_report", "enable_metrics"), "sglang": ("enable_prompt_tokens_details",)}
    for name in foreign[args.dress]:
        if getattr(args, name):
            parser.error(f"--{name.replace('_', '-')} is not a flag of the {args.dress} dress")
    return args


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
    limits = Limits(window, args.max_num_seqs, dress.block_size_tokens, pool)
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
            "disaggregation_mode": "null",
        },
    )


def _serve(args: argparse.Namespace) -> int:
    with _bound(args.host, args.port) as listener:
        served = load(args, Path(args.model))
        app = build_app(served, app_settings(args))
        try:
            listener.listen(2048)
        except OSError as error:
            raise _no_port(args.host, args.port, error) from error
        sys.setswitchinterval(SWITCH_S)
        server = _Server(uvicorn.Config(app, log_config=_LOGGING, timeout_graceful_shutdown=GRACE_S, ws="none"))
        return asyncio.run(_run(server, served.scheduler, listener))


async def _run(server: _Server, scheduler: Scheduler, listener: socket.socket) -> int:
    stopped_by: list[int] = []

    def stop(number: int) -> None:
        stopped_by.append(number)
        server.should_exit = True
        # Ends the answers under way, each with an error frame.
        scheduler.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    await server.serve(sockets=[listener])
    scheduler.stop(timeout_s=GRACE_S / 2)
    if not stopped_by:
        raise EngineFailed("HTTP server", "ended without a signal", "", "see its messages above")
    return 128 + signal.SIGINT if stopped_by[0] == signal.SIGINT else 0


class _Server(uvicorn.Server):
    """A uvicorn server whose signals are handled by the engine, so that SIGTERM ends it with code 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound before the model is loaded, so that a port in use is told at once; it does not listen yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _no_port(host, port, error) from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise _no_port(host, port, error) from error
        yield listener


def _no_port(host: str, port: int, error: OSError) -> EngineFailed:
    if error.errno == errno.EADDRINUSE:
        remedy = "stop what listens there, or choose another --port"
        return EngineFailed(
            f"{host}:{port}", f"port {port} is in use", "one process at a time can listen on it", remedy
        )
    return EngineFailed(f"{host}:{port}", f"cannot listen ({error.strerror or error})", "", "check --host and --port")


def _dress(args: argparse.Namespace) -> Dress:
    if args.dress == "sglang":
        return SglangDress(report_cached=args.enable_cache_report)
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


def _end_now(number: int, frame: object) -> Never:
    raise SystemExit(0)


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"a port is from 0 to 65535 (got {text})")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1 (got {text})")
    return value


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
