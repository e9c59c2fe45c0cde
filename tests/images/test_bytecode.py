"""Compiled modules depend on their source, and not on what the same worker compiled before."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.images import bytecode

FIRST = "x = 'android_word_of_this_test'\n"
SHARED = """
def f(x):
    return x in {"android_word_of_this_test", "linux"}


def g(x):
    return x in {"android_word_of_this_test", "linux"}
"""


def compiled(folder: Path, **environment: str) -> dict[str, str]:
    """Path of each .pyc → its SHA-256, once the program has run over `folder`."""
    environ = {**os.environ, **environment}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-B", bytecode.__file__, folder], check=True, env=environ, capture_output=True)
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*.pyc")}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sorted(found.items())}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for number in range(40):
        place = tmp_path / f"package{number:02}" / "inner"
        place.mkdir(parents=True)
        (place / "__init__.py").write_text(FIRST if number % 2 else "")
        (place / "shared.py").write_text(SHARED)
        (place.parent / "other.py").write_text(f"y = {number}\n" + FIRST)
    return tmp_path


def test_the_same_bytes_come_whatever_the_workers_do(tree: Path) -> None:
    first = compiled(tree)
    assert len(first) == 120
    for path in tree.rglob("*.pyc"):
        path.unlink()
    assert compiled(tree, PYTHONHASHSEED="5") == first
    for path in tree.rglob("*.pyc"):
        path.unlink()
    only = "taskset" if Path("/usr/bin/taskset").exists() else ""
    if only:
        subprocess.run(["taskset", "-c", "0", sys.executable, "-B", bytecode.__file__, tree], check=True)
        assert {name: hashlib.sha256((tree / name).read_bytes()).hexdigest() for name in first} == first


def test_every_module_is_compiled_and_checked_by_hash(tree: Path) -> None:
    (tree / "template.py").write_text("def {{ name }}():\n")
    (tree / "old.py").write_text("print 'x'\n")
    (tree / "null.py").write_bytes(b"x = '\0'\n")
    (tree / "latin.py").write_bytes(b"x = '\xff'\n")
    assert len(compiled(tree)) == 120
    source = tree / "package00" / "inner" / "shared.py"
    data = Path(importlib.util.cache_from_source(str(source))).read_bytes()
    assert int.from_bytes(data[4:8], "little") == 3, "hash-based, and checked"
    assert data[8:16] == importlib.util.source_hash(source.read_bytes())


def test_a_folder_that_cannot_be_written_is_an_error(tree: Path) -> None:
    (tree / "package00" / "inner" / "__pycache__").write_text("in the way")
    ran = subprocess.run([sys.executable, "-B", bytecode.__file__, tree], check=False, capture_output=True, text=True)
    assert ran.returncode != 0
    assert "which compiled a folder, ended with 1" in ran.stderr


def test_bytecode_that_a_package_brought_does_not_stay(tmp_path: Path) -> None:
    source, modes = tmp_path / "a.py", py_compile.PycInvalidationMode
    source.write_text("x = 1\n")
    cache = Path(importlib.util.cache_from_source(str(source))).parent
    py_compile.compile(str(source), invalidation_mode=modes.UNCHECKED_HASH, optimize=1)
    py_compile.compile(str(source), str(tmp_path / "a.pyc"), invalidation_mode=modes.TIMESTAMP)
    py_compile.compile(str(source), str(cache / "broken.cpython-399.pyc"), invalidation_mode=modes.UNCHECKED_HASH)
    py_compile.compile(str(source), str(tmp_path / "sourceless.pyc"), invalidation_mode=modes.TIMESTAMP)
    (tmp_path / "broken.py").write_text("x = (\n")
    source.write_text("x = 2\n")
    assert list(compiled(tmp_path)) == [
        str(Path(importlib.util.cache_from_source(str(source))).relative_to(tmp_path)),
        "sourceless.pyc",
    ]


def test_a_folder_or_a_module_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-B", bytecode.__file__]
    (tmp_path / "a.py").symlink_to("nowhere")
    for folder, said in ((tmp_path, "a.py"), (tmp_path / "absent", "absent")):
        ran = subprocess.run([*command, folder], check=False, capture_output=True, text=True)
        assert ran.returncode == 1
        assert said in ran.stderr
        assert "Traceback" not in ran.stderr
