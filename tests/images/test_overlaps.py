"""Wheels that write the same path: whose file stays does not depend on which was installed faster."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from slipway.images import overlaps

UV = Path(sys.executable).parent / "uv"


def entry(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def wheel(folder: Path, name: str, files: dict[str, str], needs: tuple[str, ...] = ()) -> Path:
    """A wheel of version 1 with `files`."""
    info = f"{name}-1.dist-info"
    lines = [f"Requires-Dist: {need}" for need in needs]
    texts = {
        **files,
        f"{info}/METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name.replace('_', '.')}", "Version: 1", *lines]
        )
        + "\n\nRequires-Dist: nothing, this is text\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},{entry(text.encode())},{len(text)}\n" for path, text in texts.items())
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in {**texts, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(inside, text)
    return path


WHEELS = {
    # As nvidia-cutlass-dsl: the variant needs the base, is first by name here, and is meant to win.
    "dsl_base": ({"dsl/__init__.py": "BASE = 1", "dsl/same.py": "", "dsl/base.py": ""}, ("other>=1",)),
    "dsl_a": ({"dsl/__init__.py": "VARIANT = 1", "dsl/same.py": "", "dsl/a.py": ""}, ("dsl.base (==1)",)),
    "back_z": ({"build_backend.py": "Z = 1", "z.py": ""}, ('dsl-a; extra == "all"',)),
    "back_y": ({"build_backend.py": "Y = 1", "y.py": ""}, ("other", "absent")),
    "other": ({"other.py": ""}, ('back-y; extra == "x"',)),
}


def site_packages(environment: Path) -> Path:
    return next((environment / "lib").glob("python3*/site-packages"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, (files, needs) in WHEELS.items():
        wheel(tmp_path, name, files, needs)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    return tmp_path


def install(folder: Path, *names: str) -> None:
    wheels = [folder / f"{name}-1-py3-none-any.whl" for name in names]
    command = [UV, "pip", "install", "-q", "--no-deps", "--no-index", "--no-config", "--offline", "--reinstall"]
    subprocess.run([*command, "--python", folder / "venv/bin/python", *wheels], check=True)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", overlaps.__file__, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("order", [list(WHEELS), list(reversed(WHEELS))])
def test_the_same_files_stay_whatever_was_installed_first(folder: Path, order: list[str]) -> None:
    for name in order:
        install(folder, name)
    place = site_packages(folder / "venv")
    before = run("--check", place)
    names = run(place).stdout.split()
    assert names == ["back-y", "back-z", "dsl-base", "dsl-a"]
    for name in names:
        install(folder, name.replace("-", "_"))
    assert run("--check", place).returncode == 0
    assert (place / "dsl/__init__.py").read_text() == "VARIANT = 1"
    assert (place / "build_backend.py").read_text() == "Z = 1"
    assert all((place / path).is_file() for files, _ in WHEELS.values() for path in files)
    # One of the two orders is wrong at first.
    if order == list(reversed(WHEELS)):
        assert before.returncode == 1
        assert (
            f"dsl/__init__.py: expected {entry(b'VARIANT = 1')} of dsl-a, got {entry(b'BASE = 1')}; also dsl-base"
            in (before.stderr)
        )


def test_without_overlaps_nothing_is_said(folder: Path) -> None:
    install(folder, "other", "dsl_base")
    place = site_packages(folder / "venv")
    assert run(place).stdout.split() == []
    assert run("--check", place).returncode == 0


def test_a_contested_file_that_is_gone_is_wrong(folder: Path) -> None:
    install(folder, "back_y", "back_z")
    place = site_packages(folder / "venv")
    (place / "build_backend.py").unlink()
    said = run("--check", place)
    assert said.returncode == 1
    assert "got nothing that can be read (No such file or directory)" in said.stderr


def test_a_circle_has_one_order(tmp_path: Path) -> None:
    for name, needs in {"a": ("b",), "b": ("c",), "c": ("a",)}.items():
        with zipfile.ZipFile(wheel(tmp_path, name, {"x.py": name}, needs)) as archive:
            archive.extractall(tmp_path / "site")
    assert list(overlaps.installed(tmp_path / "site")) == ["c", "b", "a"]


def packages(site: Path, **records: str) -> Path:
    """A folder of installed packages with these RECORDs; `x.py` in it holds `b`."""
    for name, record in records.items():
        info = site / f"{name}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {name.partition('_')[0]}\n")
        (info / "RECORD").write_text(record)
    (site / "x.py").write_text("b")
    return site


OF_A, OF_B = f"x.py,{entry(b'a')},1\n", f"x.py,{entry(b'b')},1\n"


@pytest.mark.parametrize(
    ("records", "code", "said"),
    [
        ({"a": OF_A, "b": OF_B}, 0, ""),
        ({"a": OF_B, "b": OF_A}, 1, "x.py: expected"),
        ({"a": OF_A, "b": "x.py,,\n"}, 1, "x.py: b gives no hash of it, and a write it too"),
        ({"a": "x.py,,\n", "b": "x.py,,\n"}, 1, "x.py: b gives no hash of it"),
        ({"a": "x.py,,\n", "b": OF_B}, 0, ""),
        ({"a": OF_A, "a_again": OF_B}, 2, "is a second package named a"),
        ({"a": OF_A, "b": f"d/../x.py,{entry(b'c')},1\n"}, 1, "x.py: expected"),
        ({"a": OF_A, "b": "{site}/" + f"x.py,{entry(b'c')},1\n"}, 1, "x.py: expected"),
        (
            {"a": f"x,{entry(b'a')},1\n", "b": f"x/y.py,{entry(b'b')},1\n"},
            1,
            "x/y.py: is a file of b, and x is one of a",
        ),
        ({"a": OF_A, "b": "x.py,sha512=AAAA,1\n"}, 1, "got sha512="),
        ({"a": OF_A, "b": "x.py,crc=AAAA,1\n"}, 1, "got no crc, which is not known here"),
        ({"a": f'"{"x" * 200_000}",{entry(b"a")},1\n'}, 2, "a-1.dist-info/RECORD: cannot be read"),
    ],
)
def test_what_cannot_be_proved_is_not_called_right(
    tmp_path: Path, records: dict[str, str], code: int, said: str
) -> None:
    site = packages(tmp_path, **{name: text.replace("{site}", str(tmp_path)) for name, text in records.items()})
    ran = run("--check", site)
    assert (ran.returncode, "Traceback" in ran.stderr) == (code, False), ran.stderr
    assert said in ran.stderr


@pytest.mark.parametrize("words", [("--check", "/nowhere"), ("--check",), ("--chek", "/"), ("/", "/"), ()])
def test_where_nothing_can_be_told_it_is_an_error(words: tuple[str, ...]) -> None:
    ran = run(*words)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr


def test_a_folded_licence_names_no_package(tmp_path: Path) -> None:
    site = packages(tmp_path, a=OF_A, b="")
    for name in "ab":
        text = (
            f"Name: {name}\nLicense: BSD\n        \n        Name: libquadmath\n         Requires-Dist: c\nVersion: 1\n"
        )
        (site / f"{name}-1.dist-info" / "METADATA").write_text(text)
    assert [(one.name, one.needs) for one in overlaps.installed(site).values()] == [
        ("a", frozenset()),
        ("b", frozenset()),
    ]


def test_needs_are_read_whatever_their_case_and_however_long_their_chain(tmp_path: Path) -> None:
    site = packages(tmp_path, **{f"p{number}": "" for number in range(1500)})
    for number in range(1499):
        need = f"requires-dist: p{number + 1}; platform_release != 'extra'\n"
        (site / f"p{number}-1.dist-info" / "METADATA").write_text(f"Name: p{number}\n{need}")
    assert list(overlaps.installed(site))[:2] == ["p1499", "p1498"]
