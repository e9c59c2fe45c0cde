"""One wheel of each package, the one that an installer would choose; nothing of the caller's shell changes what is resolved."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

from slipway.errors import UsageError
from slipway.images import python_lock
from slipway.images.python_lock import Wheel


def best(*names: str, python: str = "3.11", glibc: str = "2.36") -> str:
    """The name that stands first in the order of an installer, among `names` that fit."""
    order = python_lock.preference(python, "x86_64", glibc)
    return min(names, key=lambda name: min(order.get(tag, len(order)) for tag in parse_wheel_filename(name)[3]))


@pytest.mark.parametrize(
    "names",
    [
        # The wheel for any platform expects the system's libsndfile; that of the platform brings it.
        ("soundfile-0.13.1-py2.py3-none-manylinux_2_28_x86_64.whl", "soundfile-0.13.1-py2.py3-none-any.whl"),
        ("lxml-6.1.3-cp311-cp311-manylinux_2_28_x86_64.whl", "lxml-6.1.3-cp311-cp311-manylinux2014_x86_64.whl"),
        ("x-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", "x-1.0-cp38-abi3-manylinux_2_34_x86_64.whl"),
        ("x-1.0-cp311-abi3-manylinux_2_34_x86_64.whl", "x-1.0-cp38-abi3-manylinux_2_34_x86_64.whl"),
        ("x-1.0-py3-none-any.whl", "x-1.0-cp311-cp311-manylinux_2_39_x86_64.whl"),  # newer than the base's C library
        ("x-1.0-py311-none-any.whl", "x-1.0-py3-none-any.whl"),
    ],
)
def test_the_wheel_that_an_installer_would_choose_comes_first(names: tuple[str, str]) -> None:
    assert best(*names) == names[0]
    assert best(*reversed(names)) == names[0]


def test_the_file_is_sorted_and_reads_back(tmp_path: Path) -> None:
    wheels = (Wheel("zz", "2.0", "b" * 64, 5), Wheel("aa", "1.0+cu13", "a" * 64, None))
    path = tmp_path / "requirements.lock"
    path.write_text(python_lock.text(wheels))
    assert python_lock.read(path) == {"aa": "1.0+cu13", "zz": "2.0"}
    assert python_lock.text(wheels) == python_lock.text(wheels[::-1])
    path.write_text("aa==1.0\n")
    with pytest.raises(UsageError, match="no sha256"):
        python_lock.read(path)


def test_only_what_reaches_the_index_is_taken_from_the_shell() -> None:
    shell = {
        "PIP_INDEX_URL": "https://index.example/simple",
        "PIP_CERT": "/ca.pem",
        "UV_PRERELEASE": "allow",
        "HOME": "/h",
    }
    seen = python_lock.environment(shell)
    assert (seen["UV_DEFAULT_INDEX"], seen["SSL_CERT_FILE"]) == ("https://index.example/simple", "/ca.pem")
    assert "UV_PRERELEASE" not in seen
    assert python_lock.environment({**shell, "UV_DEFAULT_INDEX": "https://other.example"})["UV_DEFAULT_INDEX"] == (
        "https://other.example"
    )
