"""The texts and numbers that a recipe may hold, each with the words that a user who gets it wrong is told."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slipway.documents import Matching

Engine = Literal["sglang", "vllm", "reference"]
RoleName = Literal["server", "prefill", "decode", "router"]
Fabric = Literal["infiniband", "roce", "efa", "tcp"]
Scalar = str | int | float | bool
FlagValue = Scalar | list[Scalar] | dict[str, Scalar | list[Scalar] | dict[str, Scalar]]
"""true is the bare flag, false its `--no-` twin, a list several values, a mapping one JSON argument."""

Word = Annotated[
    str, Matching(r"[a-z0-9][a-z0-9.+-]{0,79}", "lower-case letters, digits, dots, plus and dashes, as rtx-3090")
]
RepoId = Annotated[str, Matching(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", "a repository, as poolside/Laguna-M.1")]
Revision = Annotated[
    str,
    Matching(
        r"[0-9a-f]{40}", "a commit of 40 hex digits, since branches and tags move; `invoke lock-models` prints it"
    ),
]
GitCommit = Annotated[
    str,
    Matching(r"[0-9a-f]{40}", "a commit of 40 hex digits, since branches and tags move; `git ls-remote` prints it"),
]
ImageRef = Annotated[
    str,
    Matching(
        r"([a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
        r"(@sha256:[0-9a-f]{64})?|build:[a-z0-9]+(-[a-z0-9]+)*",
        "an image, as name:tag@sha256:…, or build:ENGINE-VARIANT for one that must be built",
    ),
]
FlagName = Annotated[str, Matching(r"[a-z0-9][a-z0-9._-]*", "a flag as in --help, without the dashes in front")]
EnvName = Annotated[str, Matching(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")]
AbsolutePath = Annotated[str, Matching(r"/[^:\x00]*", "an absolute path without colons")]
DevicePath = Annotated[str, Matching(r"/dev/[A-Za-z0-9_/-]+", "a device below /dev")]
Capability = Annotated[str, Matching(r"IPC_LOCK|SYS_NICE|SYS_PTRACE", "IPC_LOCK, SYS_NICE or SYS_PTRACE")]
VersionText = Annotated[str, Matching(r"\d+\.\d+(\.\w+)*", 'a version in quotes, as "0.25.1"')]
DriverVersion = Annotated[
    str,
    Matching(
        r"\d{3}(\.\d{1,4}){1,2}",
        'an NVIDIA driver in quotes, as "580.95.05"; `nvidia-smi --query-gpu=driver_version --format=csv,noheader` prints it',
    ),
]
IpAddress = Annotated[str, Matching(r"[0-9a-fA-F.:]+", "an IP address to listen on, as 127.0.0.1")]
Day = Annotated[str, Matching(r"\d{4}-\d{2}-\d{2}", 'a day in quotes, as "2026-07-22"')]
Port = Annotated[int, Field(ge=1, le=65535)]

ALLOW_PATTERNS = (
    "*.safetensors",
    "*.json",
    "*.jinja",
    "tokenizer*",
    "*.model",
    "merges.txt",
    "vocab.txt",
    "*.py",
    "LICENSE*",
    "NOTICE*",
)
"""What a checkpoint is made of: weights, configuration, chat template, tokenizer, the code that the configuration names, licence.

A repository may hold more. The history of Laguna-M.1-FP8 has a tarball of an engine image under `image/`: gigabytes that no
engine reads, and code that nobody has looked at. A list of what is allowed keeps out what its authors add later, too.
"""
