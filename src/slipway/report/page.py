"""The report as one HTML file that needs nothing else: no script, no request, light and dark.

Every string of the report is escaped by jinja2; only the plots, which are made here from numbers, are put in as they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from slipway.bench import BenchResult
from slipway.errors import MissingFile, from_os_error
from slipway.progress import human_bytes
from slipway.report import RunReport, plots
from slipway.report.terminal import QUANTITIES, figure, printable


@dataclass(frozen=True)
class Paths:
    """The two files of a saved report."""

    json: Path
    html: Path


def save(report: RunReport, folder: Path | str) -> Paths:
    """The paths of `report.json` and `report.html` in `folder`; each is there as a whole or as it was before.

    Raises: DiskFailure when the folder cannot be written.
    """
    paths = Paths(Path(folder) / "report.json", Path(folder) / "report.html")
    text, html = report.saved_text(), render(report, json_name=paths.json.name)
    try:
        paths.json.parent.mkdir(parents=True, exist_ok=True)
        _write_atomically(paths.json, text)
        _write_atomically(paths.html, html)
    except OSError as error:
        raise from_os_error(error, folder, "writing the report") from error
    return paths


def newest(folder: Path) -> Path:
    """The report.json of the newest run below `folder`, one folder a run, named so that the newest sorts last.

    Raises: MissingFile when there is none.
    """
    found = sorted(folder.glob("*/report.json"))
    if not found:
        raise MissingFile(
            folder, "no report here", "each run of `invoke demo` leaves one", "run `invoke demo`, or give --path"
        )
    return found[-1]


def render(report: RunReport, *, json_name: str = "") -> str:
    """The page; the same report always gives the same text. `json_name` is linked where the JSON lies beside it."""
    template = _environment().get_template("template.html.jinja")
    return template.render(
        report=report,
        bench=report.bench,
        quantities=QUANTITIES,
        pictures=_pictures(report.bench) if report.bench else {},
        json_name=json_name,
        raw=_raw(report),
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters["figure"] = figure
    environment.filters["human_bytes"] = human_bytes
    return environment


def _shown(value: Any) -> Any:
    """A string as it may stand in the page: control characters and invisible direction marks, which can make a page say
    what it does not, are replaced. Markup that jinja2 or the plots made is left as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return "\n".join(printable(line) for line in value.split("\n"))
    return value


def _pictures(bench: BenchResult) -> dict[str, Markup]:
    """The plots by name; a distribution without values is left out."""
    completed = [record for record in bench.requests if record.completed]
    pictures = {"timeline": plots.timeline(bench.requests)} if bench.requests else {}
    first = [record.ttft_any_ms for record in completed if record.ttft_any_ms is not None]
    visible = [record.ttft_visible_ms for record in completed if record.ttft_visible_ms is not None]
    if first:
        series = [("any token", first), *([("visible text", visible)] if visible != first else [])]
        pictures["ttft"] = plots.distribution("ttft", series, "ms to first token")
    decode = [record.decode_ms_per_token for record in completed if record.decode_ms_per_token is not None]
    if decode:
        pictures["decode"] = plots.distribution("decode", [("decode", decode)], "ms per token while decoding")
    # Built from numbers by plots.py alone; the labels in them are escaped there.
    return {name: Markup(svg) for name, svg in pictures.items()}  # noqa: S704


def _raw(report: RunReport) -> str:
    """The facts as JSON without the per-request records, which the JSON file beside the page holds."""
    data: dict[str, Any] = report.model_dump(mode="json", by_alias=True)
    if data["bench"]:
        data["bench"]["requests"] = f"{len(data['bench']['requests'])} records, see the JSON file"
    return json.dumps(data, indent=1, ensure_ascii=False)


def _write_atomically(path: Path, text: str) -> None:
    """Write beside `path`, then rename: a reader or a full disk never meets half a file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise
