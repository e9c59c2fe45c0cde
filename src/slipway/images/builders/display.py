"""A running build, shown: a tree of stages on a terminal, one line per finished step elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from slipway.images.builders.progress_events import BuildState, Event, Step
from slipway.progress import Live, Progress, human_bytes

_WIDTH = 90
"""Characters of an instruction that are shown; RUN lines are long."""

Show = Callable[[Event], None]


@contextmanager
def shown(title: str, state: BuildState, progress: Progress) -> Iterator[Show]:
    """A function that adds an event to `state` and shows what changed, for as long as the block runs."""
    if isinstance(progress, Live):
        with progress.live() as draw:
            yield lambda event: _draw(title, state, event, draw)
        return
    told: set[str] = set()
    with progress.track(title, total=None, unit="steps") as advance:

        def take(event: Event) -> None:
            step = state.take(event)
            # BuildKit completes a step again for each of its parts.
            if step and worth_a_line(step) and step.digest not in told:
                told.add(step.digest)
                progress.note(line(step))
                advance(1)

        yield take


def tree(title: str, state: BuildState) -> Tree:
    """The stages with their steps; what BuildKit does by itself is left out unless it failed or still runs."""
    root = Tree(Text(title))
    stages: dict[str, Tree] = {}
    for step in state.steps.values():
        if step.stage == "internal" and not step.error and step.completed_s is not None:
            continue
        if step.stage not in stages:
            stages[step.stage] = root.add(Text(step.stage))
        stages[step.stage].add(Text(line(step, with_stage=False), style=_style(step)))
    return root


def line(step: Step, *, with_stage: bool = True) -> str:
    """One step as text: where it stands, the instruction, how long it took or `cached`, and bytes moved."""
    place = f"{step.index}/{step.count} " if step.index else ""
    if with_stage:
        place = f"[{step.stage} {place.strip()}] " if place else f"[{step.stage}] "
    text = step.text if len(step.text) <= _WIDTH else f"{step.text[: _WIDTH - 1]}…"
    facts = [_outcome(step)]
    total = sum(step.total_bytes.values())
    if total:
        done = sum(step.done_bytes.values())
        facts.append(human_bytes(total) if done >= total else f"{human_bytes(done)} of {human_bytes(total)}")
    return f"{place}{text}  {', '.join(facts)}"


def worth_a_line(step: Step) -> bool:
    """Whether a log says that this step ended: not for BuildKit's own, which are many and short."""
    return bool(step.error) or step.stage == "export" or step.is_instruction or bool(step.total_bytes)


def _draw(title: str, state: BuildState, event: Event, draw: Callable[[RenderableType], None]) -> None:
    state.take(event)
    draw(tree(title, state))


def _outcome(step: Step) -> str:
    if step.error:
        return "failed"
    if step.cached:
        return "cached"
    if step.seconds is None:
        return "…" if step.started_s is not None else "waits"
    return f"{step.seconds:.1f} s"


def _style(step: Step) -> str:
    if step.error:
        return "red"
    return "dim" if step.cached or step.started_s is None else ""
