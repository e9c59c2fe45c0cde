"""`docker buildx build --progress=rawjson` as typed events, and the state of a build that they add up to. Pure.

BuildKit prints one JSON document per change: buildx 0.13 over several lines each, later ones on one line each, both
interleaved with plain lines such as the final `ERROR: …`. Source: captured from buildx 0.13.1, tests/data/builds.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import shlex
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

LAST_LINES = 10
"""How many lines of a failed step's output an error shows."""

_MOST_BUFFERED = 8 << 20
"""Bytes after which an unfinished document is taken for text; BuildKit's are a few kB."""

_DIGEST = r"sha256:[0-9a-f]{64}"
_IMAGE = re.compile(rf"(?:^|\s)(?:FROM |docker-image://)(?P<name>\S+?)@(?P<digest>{_DIGEST})")
_STAGE = re.compile(r"\[(?:(?P<stage>[^\]\s]+) +)?(?P<index>\d+)/(?P<count>\d+)\] (?P<text>.*)", re.DOTALL)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Vertex:
    """One step of the build graph; the times are seconds since 1970, None where not yet known."""

    digest: str
    name: str
    started_s: float | None = None
    completed_s: float | None = None
    cached: bool = False
    error: str = ""


@dataclass(frozen=True)
class Status:
    """How far one transfer or action within a step is; `total_bytes` is 0 where it is not counted in bytes."""

    vertex: str
    id: str
    current_bytes: int = 0
    total_bytes: int = 0
    completed: bool = False


@dataclass(frozen=True)
class Log:
    """Output of a RUN."""

    vertex: str
    text: str


@dataclass(frozen=True)
class Line:
    """A line outside of any document: the final error, and the part of the Dockerfile that it is about."""

    text: str


Event = Vertex | Status | Log | Line


class EventReader:
    """Splits the stream into events; what is not a document as BuildKit writes it comes back as lines, never an error."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._size = 0

    def feed(self, line: str) -> tuple[Event, ...]:
        """The events that `line` completes."""
        if not self._lines and not line.startswith("{"):
            return (Line(line.rstrip("\r\n")),) if line.strip() else ()
        self._lines.append(line)
        self._size += len(line)
        # A document of several lines is indented, so only its last line starts with the brace.
        if line.startswith("}") or len(self._lines) == 1:
            document = _parsed("".join(self._lines))
            if document is not None:
                self._lines, self._size = [], 0
                return tuple(_events(document))
        return self.close() if self._size > _MOST_BUFFERED else ()

    def close(self) -> tuple[Event, ...]:
        """What is left over when the stream ends within a document, as lines."""
        rest = tuple(Line(line.rstrip("\r\n")) for line in self._lines if line.strip())
        self._lines, self._size = [], 0
        return rest


@dataclass
class Step:
    """One line of the shown tree: a step of a stage, or of what BuildKit does by itself (`stage` is "internal")."""

    digest: str
    stage: str
    index: int
    count: int
    text: str
    started_s: float | None = None
    completed_s: float | None = None
    cached: bool = False
    error: str = ""
    done_bytes: dict[str, int] = field(default_factory=dict)
    total_bytes: dict[str, int] = field(default_factory=dict)
    output: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))

    @property
    def seconds(self) -> float | None:
        """How long it took; None while it runs."""
        if self.started_s is None or self.completed_s is None:
            return None
        return max(self.completed_s - self.started_s, 0.0)

    @property
    def is_instruction(self) -> bool:
        """Whether it runs or copies something, which a cache can save; FROM only names."""
        return self.index > 0 and not self.text.startswith("FROM ")


@dataclass
class BuildState:
    """The build so far: its steps in the order in which they appeared, and what was resolved on the way."""

    steps: dict[str, Step] = field(default_factory=dict)
    materials: dict[str, str] = field(default_factory=dict)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=40))

    def take(self, event: Event) -> Step | None:
        """Add one event; the step, when this event completed it."""
        match event:
            case Line(text):
                self.lines.append(text)
            case Log(vertex, text):
                if vertex in self.steps:
                    self.steps[vertex].output.extend(line for line in text.splitlines() if line.strip())
            case Status():
                self._transfer(event)
            case Vertex():
                return self._vertex(event)
        return None

    @property
    def cached_steps(self) -> int:
        """How many instructions were not run, for their result was in the cache."""
        return sum(step.cached for step in self.steps.values() if step.is_instruction)

    @property
    def failed(self) -> Step | None:
        """The first step that failed by itself; the others are only cancelled."""
        failed = [step for step in self.steps.values() if step.error]
        return next((step for step in failed if "context canceled" not in step.error), failed[0] if failed else None)

    def _transfer(self, event: Status) -> None:
        step = self.steps.get(event.vertex)
        if step and event.total_bytes:
            step.done_bytes[event.id] = event.current_bytes
            step.total_bytes[event.id] = event.total_bytes

    def _vertex(self, event: Vertex) -> Step | None:
        step = self.steps.get(event.digest)
        if step is None:
            step = self.steps[event.digest] = _step(event.digest, event.name)
            self.materials.update(materials_of(event.name))
        # A step may start several times (a resolve, then the pull); the whole span is what the user waits for.
        if event.started_s is not None:
            step.started_s = event.started_s if step.started_s is None else min(step.started_s, event.started_s)
        step.completed_s = event.completed_s
        step.cached = step.cached or event.cached
        step.error = event.error or step.error
        return step if step.completed_s is not None else None


def materials_of(name: str) -> dict[str, str]:
    """The inputs that a step's name shows, each with its digest: images, downloads, git commits.

    An image's digest is the resolved one; a download's is the checksum that BuildKit enforces, `""` where there is none.
    """
    found = {f"docker-image://{image['name']}": image["digest"] for image in _IMAGE.finditer(name)}
    stage = _STAGE.fullmatch(name)
    if stage and stage["text"].startswith("ADD "):
        found.update(_added(stage["text"]))
    return found


def _added(instruction: str) -> Iterator[tuple[str, str]]:
    try:
        words = shlex.split(instruction)[1:]
    except ValueError:
        words = instruction.split()[1:]
    options = [word for word in words if word.startswith("--")]
    checksum = next((word.partition("=")[2] for word in options if word.startswith("--checksum=")), "")
    for word in words[len(options) : -1]:
        url, _, fragment = word.partition("#")
        if re.search(r"\.git/?$", url) or url.startswith(("git://", "git@", "ssh://")):
            commit = checksum or fragment.partition(":")[0]
            yield url, commit if _COMMIT.fullmatch(commit) else ""
        elif url.startswith(("http://", "https://")):
            yield word, checksum


def _step(digest: str, name: str) -> Step:
    stage = _STAGE.fullmatch(name)
    if stage:
        label = stage["stage"] or "stage-0"
        return Step(digest, label, int(stage["index"]), int(stage["count"]), " ".join(stage["text"].split()))
    kind = "export" if name.startswith("exporting") else "internal"
    return Step(digest, kind, 0, 0, " ".join(name.removeprefix("[internal] ").split()))


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _events(document: dict[str, Any]) -> Iterator[Event]:
    for entry in _entries(document, "vertexes"):
        yield Vertex(
            digest=_text(entry, "digest"),
            name=_text(entry, "name"),
            started_s=_seconds(entry.get("started")),
            completed_s=_seconds(entry.get("completed")),
            cached=entry.get("cached") is True,
            error=_text(entry, "error"),
        )
    for entry in _entries(document, "statuses"):
        total, current = _count(entry.get("total")), _count(entry.get("current"))
        yield Status(_text(entry, "vertex"), _text(entry, "id"), current, total, "completed" in entry)
    for entry in _entries(document, "logs"):
        yield Log(_text(entry, "vertex"), _decoded(_text(entry, "data")))


def _entries(document: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    entries = document.get(key)
    yield from (entry for entry in entries if isinstance(entry, dict)) if isinstance(entries, list) else ()


def _text(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _decoded(data: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode(errors="replace")
    except (binascii.Error, ValueError):
        return data


def _seconds(value: object) -> float | None:
    """Go's RFC 3339 time, with up to nine digits of a second, which is more than every Python reads."""
    found = (
        re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)", value)
        if isinstance(value, str)
        else None
    )
    if not found:
        return None
    try:
        whole = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None
    return whole + float(found[2] or 0)
