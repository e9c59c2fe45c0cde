"""The Dockerfile linter against its case file: every rule breaks where it must, and only there."""

from __future__ import annotations

import functools
import os
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.errors import DocumentError, MissingFile, UsageError
from slipway.images.allowed import AllowedInputs, Download, GitCommit
from slipway.images.dockerfile import declared_arguments, problems, require_locked
from slipway.images.dockerfile_reader import read
from slipway.images.dockerfile_rules import RULES
from slipway.images.dockerfile_words import substituted
from slipway.images.inputs import Place, dockerfile_text
from slipway.images.shell_words import commands
from slipway.images.spec import Variant

ROOT = Path(__file__).resolve().parents[2]
ONE, TWO, NEW = (f"sha256:{digit * 64}" for digit in "129")
SUM, SHA = "a" * 64, "c" * 40
ALLOWED = AllowedInputs(
    images=(f"debian@{ONE}", f"127.0.0.1:5000/base@{TWO}"),
    downloads=(Download("https://files.example/a.whl", SUM), Download("https://files.example/1.0.whl", SUM)),
    commits=(GitCommit("https://git.example/sgl-project/sglang.git", SHA),),
    build_args={"BASE": f"debian@{ONE}", "VERSION": "1.0"},
    debs=("curl=8.14.1-2", "git=1:2.47.3-0+deb13u1"),
    python_locks=("locked/python.lock",),
    deb_lists=("locked/debs.list",),
)
CASES: dict[str, dict[str, list[dict[str, Any]]]] = yaml.safe_load(
    (Path(__file__).resolve().parent.parent / "data" / "dockerfile_cases.yaml").read_text()
)
BEFORE = f"FROM debian@{ONE}\nARG SOURCE_DATE_EPOCH\n"


def written(case: dict[str, Any]) -> tuple[str, int]:
    """The Dockerfile of a case, and how many lines stand before its first."""
    text = case.get("file") or case["fragment"]
    for name, value in {"ONE": ONE, "TWO": TWO, "NEW": NEW, "SUM": SUM, "SHA": SHA}.items():
        text = text.replace(f"@{name}", f"@{value}").replace(f"#{name}", f"#{value}")
        text = (
            text.replace(f":{name} ", f":{value} ").replace(f"={name} ", f"={value} ").replace(f" {name}", f" {value}")
        )
    return (text, 0) if "file" in case else (f"{BEFORE}{text}\nUSER 1000\n", 2)


def cases(kind: str) -> list[Any]:
    return [
        pytest.param(rule, case, id=f"{rule}-{index}")
        for rule, both in CASES.items()
        for index, case in enumerate(both[kind])
    ]


@pytest.mark.parametrize(("rule", "case"), cases("breaking"))
def test_a_breach_is_reported_at_its_line_and_column(rule: str, case: dict[str, Any]) -> None:
    text, before = written(case)
    line, column = map(int, case["at"].split(":"))
    found = problems(text, ALLOWED, "images/x/Dockerfile")
    wanted = set(case.get("rules") or [rule, *case.get("also", [])])
    assert {problem.path for problem in found} == wanted, found
    first = case.get("rules", [rule])[0]
    places = [(problem.line, problem.column) for problem in found if problem.path == first]
    assert places[0] == (line + before, column), found
    assert len(places) == case.get("times", 1), found


@pytest.mark.parametrize(("rule", "case"), cases("keeping"))
def test_what_keeps_to_the_lock_has_no_problem(rule: str, case: dict[str, Any]) -> None:
    text, _ = written(case)
    found = problems(text, ALLOWED)
    assert {problem.path for problem in found} == ({case["breaks"]} if "breaks" in case else set()), found


def test_every_rule_has_cases_and_says_what_is_wrong_why_and_what_to_do() -> None:
    assert [rule.id for rule in RULES] == list(CASES)
    for rule in RULES:
        assert CASES[rule.id]["breaking"], rule.id
        assert CASES[rule.id]["keeping"], rule.id
    found = problems("FROM debian:trixie\nUSER 1000\n", ALLOWED, "images/x/Dockerfile")
    assert [str(problem) for problem in found] == [
        "images/x/Dockerfile:1:6: image-unpinned: an image without a digest (got 'debian:trixie'); a tag may name another "
        "image tomorrow; write name@sha256:… as in the lock"
    ]


def test_problems_stand_in_file_order_and_stop_a_build_together() -> None:
    text = "FROM debian\nARG X\nRUN npx x\n"
    assert [problem.line for problem in problems(text, ALLOWED)] == [1, 1, 2, 3]
    with pytest.raises(DocumentError, match="4 problems"):
        require_locked(text, ALLOWED)
    require_locked(f"FROM debian@{ONE}\nUSER 1000\n", ALLOWED)


def test_long_findings_are_cut() -> None:
    (problem,) = problems(f"{BEFORE}RUN npx {'x' * 1000}\nUSER 1000\n", ALLOWED)
    assert len(problem.text) < 400


def test_windows_line_ends_and_a_byte_order_mark_change_nothing() -> None:
    text = f"FROM debian@{ONE}\nRUN true && \\\n  npx x\nUSER 1000\n"
    plain = problems(text, ALLOWED)
    assert [(problem.line, problem.column) for problem in plain] == [(3, 3)]
    assert problems("\ufeff" + text.replace("\n", "\r\n"), ALLOWED) == plain


def test_two_backslashes_do_not_continue_a_line_and_another_escape_is_refused() -> None:
    doubled = read(f"FROM debian@{ONE}\nRUN echo a\\\\\nUSER 1000\n")
    assert [one.keyword for one in doubled.instructions] == ["FROM", "RUN", "USER"]
    # Whether a line below another comment still is a directive differs between releases of BuildKit.
    for head in ("# escape=`\n", "# about\n#ESCAPE = `\n", "# foo=bar\n#escape=`\n"):
        text = f"{head}FROM debian@{ONE}\nUSER 1000\n"
        assert [problem.path for problem in problems(text, ALLOWED)] == ["unreadable"]
    assert problems(f"# escape=\\\nFROM debian@{ONE}\nUSER 1000\n", ALLOWED) == ()


@pytest.mark.parametrize(
    "line",
    [
        "ARG  A=1",
        "arg A",
        "ARG B A",
        "ARG\tB=1 A=2",
        '  Arg "A"=x',
        "ARG B=x;y A",
        "ARG \\\n  # note\n  A",
        "ARG B='c d' A",
    ],
)
def test_every_argument_that_is_declared_in_any_spelling_is_known(line: str) -> None:
    assert "A" in declared_arguments(f"FROM debian@{ONE}\n{line}\n")
    assert "A" not in declared_arguments(f"FROM debian@{ONE}\n# {line.strip().splitlines()[0]}\nRUN echo ARG A\n")


def test_a_dockerfile_that_is_no_text_is_refused_in_one_line(tmp_path: Path) -> None:
    place = Place(tmp_path, "vllm", "default")
    place.folder.mkdir(parents=True)
    variant = cast("Variant", SimpleNamespace(dockerfile="Dockerfile"))
    path = place.folder / "Dockerfile"
    with pytest.raises(MissingFile):
        dockerfile_text(place, variant)
    for data, said in ((b"FROM \xff\n", "is not UTF-8"), (b"FROM a\0\n", "holds a NUL byte")):
        path.write_bytes(data)
        with pytest.raises(UsageError, match=said):
            dockerfile_text(place, variant)
    # A bare carriage return ends no line for Docker.
    path.write_bytes(b"FROM a\rRUN b\r\n")
    assert dockerfile_text(place, variant) == "FROM a\rRUN b\r\n"
    path.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(UsageError, match="is too long"):
        dockerfile_text(place, variant)
    for make in (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")):
        path.rmdir() if path.is_dir() else path.unlink()
        make()
        with pytest.raises(UsageError, match="is not a regular file"):
            dockerfile_text(place, variant)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "images").glob("*/Dockerfile*")), ids=lambda path: "-".join(path.parts[-2:])
)
def test_the_dockerfiles_of_this_repository_keep_to_a_lock(path: Path) -> None:
    allowed = AllowedInputs(
        images=(f"debian@{ONE}",),
        build_args={"BASE": f"debian@{ONE}", "ENGINE_VERSION": "1", "SOURCE_DATE_EPOCH": "1"},
        python_locks=("locked/requirements.txt", "locked/uv.txt"),
        deb_lists=("locked/debs.txt",),
    )
    assert problems(path.read_text(), allowed) == ()


def test_the_lock_decides_what_a_variable_means_not_the_default() -> None:
    text = f"ARG BASE=debian@{NEW}\nFROM $BASE\nUSER 1000\n"
    assert problems(text, ALLOWED) == ()
    bare = AllowedInputs(images=ALLOWED.images)
    assert {problem.path for problem in problems(text, bare)} == {"image-not-locked", "arg-unlocked"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$A-${A}", "1-1"),
        ("${B:-x}${A:-x}", "x1"),
        ("${A:+y}${B:+y}", "y"),
        (r"\$A", "$A"),
        ("${C}", None),
        ("${A%x}", None),
        ("$", None),
        ('"$A"', "1"),
        ("'$A'", "$A"),
        ('"https://"x', "https://x"),
        (r'"\"\x"', r'"\x'),
        ('"a', None),
        ("'a", None),
        ("plain", "plain"),
    ],
)
def test_variables_are_replaced_as_docker_does(text: str, expected: str | None) -> None:
    assert substituted(text, {"A": "1", "C": None}) == expected


PIECES = st.sampled_from([
    "FROM", "RUN", "COPY", "ADD", "ARG", "ENV", "USER", "SHELL", " ", " ", "\n", "\\\n", "\\", "#", "# syntax=", "<<EOF",
    "EOF", "--from=", "--mount=from=", "curl", "pip install", "apt-get install", "git clone", "| sh", "$(", ")", "`", "'",
    '"', "${", "}", "$X", "[", "]", "{", "&&", ";", "<", ">", "<<<", "<(", "debian", f"debian@{ONE}", "x=y", "-", "é",
    "\r", "\x0c", "\\\"", "<<'E F'", "<<-", "\xa0", "case x in x)",
    "env -S", "xargs -I", "sed e", "--mount=target=/x", "--mount=type=secret,id=", "set --", "$@", "apt-get -o Dir::x=", "trap",
    "alias x=", "su -s", "git -c", "npm", "-r", "PIP_X=", "find -exec", "-m", "python3", "awk '/|", "WORKDIR /etc", ">(", "bwrap",
])  # fmt: skip


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=80))
def test_any_text_can_be_linted(text: str) -> None:
    lines = text.removeprefix("\ufeff").split("\n")
    for problem in problems(text, ALLOWED):
        assert 1 <= problem.line <= len(lines)
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1


SHELLS_IN_SHELLS = functools.reduce(lambda inner, _: f"bwrap {'sh ' * 30}-c {shlex.quote(inner)}", range(4), "curl x")


@pytest.mark.parametrize(
    "text",
    [
        "${" * 3000, "$(" * 3000, "`" * 3001, "(" * 3000, "sh -c " * 500, '"' * 3001, "[" * 3000, "env " * 3000,
        SHELLS_IN_SHELLS, "sed -e " * 900, "find / -exec sh -c " * 900, "alias x=" * 900,
    ],
)  # fmt: skip
def test_deep_nesting_neither_crashes_nor_hangs(text: str) -> None:
    assert isinstance(problems(f"FROM debian\nRUN {text}\n", ALLOWED), tuple)


def test_what_find_runs_is_read_once_however_much_it_is() -> None:
    for part in ("-exec rm {} ", "-exec rm {} ';' "):
        found = commands(f"find / {part * 500}")
        assert [command.program for command in found[1:]] == ["rm"] * 500
        assert sum(len(command.words) for command in found) < 4000


@given(st.integers(0, 6), st.integers(0, 6), st.sampled_from(["", " \\\n", "\\\n  # note\n\\\n", " && \\\n\n"]))
def test_line_numbers_are_exact_wherever_the_command_stands(blank: int, indent: int, joint: str) -> None:
    head = f"{'# note' + chr(10) if blank % 2 else ''}FROM debian@{ONE}\n{chr(10) * blank}"
    text = f"{head}RUN true; {joint}{' ' * indent}npx x\nUSER 1000\n"
    (problem,) = problems(text, ALLOWED)
    at = text.index("npx")
    assert problem.line == text.count("\n", 0, at) + 1
    assert problem.column == at - text.rfind("\n", 0, at)


@given(
    st.lists(
        st.sampled_from(["true", "echo 'a; b'", 'echo "x | y"', "x=1 make", "(cd /x && ls)"]), min_size=1, max_size=6
    ),
    st.data(),
)
def test_commands_are_found_between_any_operators(parts: list[str], data: st.DataObject) -> None:
    script = parts[0]
    for part in parts[1:]:
        script += data.draw(st.sampled_from([" && ", "; ", " || ", "\n", " | ", " & "])) + part
    script += data.draw(st.sampled_from(["\n", "; ", " && "])) + "curl x"
    found = [command for command in commands(script) if command.program == "curl"]
    assert [command.offset for command in found] == [script.rindex("curl")]
