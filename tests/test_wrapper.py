"""The wrapper: makes .venv from the locks, once, with hashes checked; then it is in nobody's way.

A stand-in `invoke` wheel is installed by the real pip from a folder, so nothing is asked of an index.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAIN = "import os, sys\nprint('ran', sys.argv[1:], os.environ['VIRTUAL_ENV'])\n"


def wheel(folder: Path, name: str, files: dict[str, str]) -> str:
    """Write a wheel for `name` and return its lock line."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(file, text)
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


class Copy:
    """A checkout with the real wrapper and small locks of its own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "check out"
        self.wheels = folder / "wheels"
        self.root.mkdir()
        self.wheels.mkdir()
        shutil.copy(ROOT / "invoke", self.root / "invoke")
        (self.root / "src" / "slipway").mkdir(parents=True)
        (self.root / "src" / "slipway" / "__init__.py").write_text('"""Slipway."""\n\n__version__ = "3.2.1"\n')
        entry = "[console_scripts]\ninvoke = invoke.__main__:main\n"
        files = {"invoke/__init__.py": "", "invoke/__main__.py": MAIN, "invoke-1.0.dist-info/entry_points.txt": entry}
        (self.root / "requirements.lock").write_text(wheel(self.wheels, "invoke", files))
        (self.root / "requirements-dev.lock").write_text(
            (self.root / "requirements.lock").read_text() + wheel(self.wheels, "testtool", {"testtool.py": ""})
        )

    def run(self, *words: str, script: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), **env}
        command = ("sh", str(script or self.root / "invoke"), *words)
        environ = {**os.environ, **settings}
        return subprocess.run(
            command, capture_output=True, text=True, env=environ, check=False, stdin=subprocess.DEVNULL
        )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A checkout whose first call has been made."""
    copy = Copy(tmp_path_factory.mktemp("wrapper"))
    first = copy.run("demo", "--json")
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith(f"ran ['--search-root', '{copy.root}', 'demo', '--json']")
    assert "installing requirements.lock" in first.stderr
    return copy


def test_a_second_call_installs_nothing_and_says_nothing(made: Copy) -> None:
    again = made.run("demo", PATH_BEFORE="x")
    assert (again.returncode, again.stderr) == (0, "")


def test_the_virtual_environment_has_pip_and_the_checkouts_source(made: Copy) -> None:
    python = made.root / ".venv" / "bin" / "python"
    (made.root / "src" / "marker_module.py").write_text("")
    assert subprocess.run((python, "-c", "import pip, marker_module"), check=False).returncode == 0


def test_only_the_test_task_installs_the_test_tools(made: Copy) -> None:
    python = made.root / ".venv" / "bin" / "python"
    assert subprocess.run((python, "-c", "import testtool"), check=False, capture_output=True).returncode == 1
    assert "requirements-dev.lock" in made.run("--echo", "test").stderr
    assert subprocess.run((python, "-c", "import testtool"), check=False).returncode == 0
    assert made.run("test").stderr == ""


def test_it_is_found_through_a_link_and_from_any_folder(made: Copy, tmp_path: Path) -> None:
    link = tmp_path / "slipway"
    link.symlink_to(made.root / "invoke")
    ran = made.run("x", script=link)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_nothing_is_imported_from_the_folder_it_is_called_in(
    made: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json.py", "invoke.py", "sitecustomize.py"):
        (tmp_path / name).write_text("raise SystemExit('hijacked')")
    monkeypatch.chdir(tmp_path)
    ran = made.run("--version", PYTHONHOME="/nowhere")
    assert ran.returncode == 0, ran.stderr
    assert "hijacked" not in ran.stdout + ran.stderr


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_alone_lists_the_commands(made: Copy, word: str) -> None:
    ran = made.run(word)
    assert "'--list']" in ran.stdout
    assert "`./invoke --help COMMAND` shows the flags of a command" in ran.stderr
    assert "'--help', 'plan']" in made.run("--help", "plan").stdout


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_the_version_is_slipways_and_invokes(made: Copy, word: str) -> None:
    lines = made.run(word).stdout.splitlines()
    assert lines[0] == "Slipway 3.2.1"
    assert lines[1].startswith("ran ")


def test_a_wrong_hash_is_refused_and_a_mended_lock_is_installed(made: Copy) -> None:
    lock = made.root / "requirements.lock"
    good = lock.read_text()
    wrong = "testtool==1.0 --hash=sha256:" + "0" * 64 + "\n"
    lock.write_text(good + wrong)
    refused = made.run("x", PIP_FORCE_REINSTALL="1")
    assert refused.returncode == 8
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    assert "requirements.lock: not installed (pip's message is above)" in refused.stderr
    assert "ran" not in refused.stdout
    lock.write_text(good)
    assert made.run("x").returncode == 0


def test_a_moved_checkout_makes_its_environment_again(made: Copy) -> None:
    moved = made.root.parent / "moved"
    shutil.copytree(made.root, moved, symlinks=True)
    ran = made.run("x", script=moved / "invoke")
    assert ran.returncode == 0, ran.stderr
    assert "made for another place" in ran.stderr
    assert str(moved / ".venv") in ran.stdout


def test_without_a_new_enough_python_it_says_what_to_install(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("sh", "readlink", "dirname", "cmp", "mkdir", "flock"):
        found = shutil.which(tool)
        assert found or tool == "flock"
        if found:
            (tools / tool).symlink_to(found)
    refused = copy.run("x", PATH=str(tools))
    assert refused.returncode == 2
    assert "no Python 3.11 or newer" in refused.stderr
    assert "SLIPWAY_PYTHON" in refused.stderr
