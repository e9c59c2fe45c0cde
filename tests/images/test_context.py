"""The packed context: the listed files only, and the same bytes from every checkout."""

from __future__ import annotations

import hashlib
import io
import os
import random
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.errors import DiskFailure, MissingFile, UsageError
from slipway.images import context
from slipway.images.context import SECRET_NAMES, Context, pack

EPOCH = 1_780_000_000


def members(context: Context) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(context.tar)) as tar:
        return {member.name: member for member in tar}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


NAME = st.text(st.sampled_from("abcdé .-_Z0"), min_size=1, max_size=6).filter(lambda name: name.strip(". ") == name)
TREES = st.dictionaries(
    st.lists(NAME, min_size=1, max_size=3).map("/".join),
    st.tuples(st.binary(max_size=40), st.booleans()),
    min_size=1,
    max_size=8,
).filter(lambda tree: not any(one != other and other.startswith(f"{one}/") for one in tree for other in tree))


@settings(max_examples=40)
@given(TREES, st.randoms(use_true_random=False))
def test_two_checkouts_give_the_same_bytes_whatever_their_times_modes_and_places(
    tree: dict[str, tuple[bytes, bool]], chance: random.Random
) -> None:
    def checkout(folder: Path, umask: int) -> Context:
        before = os.umask(umask)
        try:
            names = list(tree)
            chance.shuffle(names)
            for name in names:
                data, executable = tree[name]
                write(folder, {name: data})
                (folder / name).chmod((0o777 if executable else 0o666) & ~umask)
                moment = chance.randrange(10**9)
                os.utime(folder / name, (moment, moment))
        finally:
            os.umask(before)
        return pack(folder, ["**"], {}, EPOCH)

    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        first = checkout(Path(one), 0o022)
        second = checkout(Path(two) / "deeper" / "é", 0o077)
    assert first == second
    assert first.sha256 == hashlib.sha256(first.tar).hexdigest()
    found = members(first)
    assert {name for name, member in found.items() if member.isfile()} == set(tree)
    assert first.file_count == len(tree)
    for name, (_, executable) in tree.items():
        assert found[name].mode == (0o755 if executable else 0o644)
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in found.values()} == {(0, 0, "", "", EPOCH)}
    assert list(found) == sorted(found, key=lambda name: name.split("/"))


def test_a_file_and_a_folder_that_are_too_large_are_named_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a.txt": b"a", "b.bin": b"", "c.txt": b"c"})
    os.truncate(tmp_path / "b.bin", 30 << 30)
    with pytest.raises(UsageError, match=r"b\.bin: is too large \(got 32212254720 bytes\)"):
        pack(tmp_path, ["*"], {}, EPOCH)
    assert pack(tmp_path, ["*.txt"], {}, EPOCH).file_count == 2
    monkeypatch.setattr(context, "MAX_BYTES", 10)
    write(tmp_path, {f"d{number}": b"four" for number in range(3)})
    with pytest.raises(UsageError, match=r"d2: makes the build context too large; .* at most 10 bytes"):
        pack(tmp_path, ["d*"], {}, EPOCH)


def test_only_listed_patterns_are_packed_and_each_must_match(tmp_path: Path) -> None:
    files = dict.fromkeys(
        ["Dockerfile", "python.lock", "notes.txt", "bin/run.sh", "bin/deep/er/x.sh", ".git/config", "a/.GIT/x"], b"x"
    )
    write(tmp_path, files)
    found = members(pack(tmp_path, ["Dockerfile", "*.lock", "bin/**/*.sh"], {}, EPOCH))
    assert {name for name, member in found.items() if member.isfile()} == {
        "Dockerfile",
        "python.lock",
        "bin/run.sh",
        "bin/deep/er/x.sh",
    }
    assert not [name for name in members(pack(tmp_path, ["**"], {}, EPOCH)) if ".git" in name.lower()]
    assert set(members(pack(tmp_path, ["bin/?un.sh"], {}, EPOCH))) == {"bin", "bin/run.sh"}
    with pytest.raises(MissingFile, match=r"python.lok: matches no file"):
        pack(tmp_path, ["Dockerfile", "python.lok"], {}, EPOCH)
    with pytest.raises(MissingFile, match=r"\.git/config: matches no file"):
        pack(tmp_path, [".git/config"], {}, EPOCH)
    with pytest.raises(MissingFile, match="no such folder"):
        pack(tmp_path / "gone", [], {}, EPOCH)


@pytest.mark.parametrize(
    ("pattern", "picked"),
    [
        ("**/*.py", ["a.py", "d/b.py", "d/e/c.py"]),
        ("d/**", ["d/b.py", "d/e/c.py", "d/e/x"]),
        ("**/e/**/*", ["d/e/c.py", "d/e/x"]),
        ("?.py", ["a.py"]),
        ("d/*", ["d/b.py"]),
        ("**/**/**/x", ["d/e/x"]),
        ("d*e/x", []),
        ("*", ["a.py"]),
    ],
)
def test_a_star_stays_in_its_folder_and_two_do_not(tmp_path: Path, pattern: str, picked: list[str]) -> None:
    write(tmp_path, dict.fromkeys(("a.py", "d/b.py", "d/e/c.py", "d/e/x"), b""))
    if picked:
        assert [
            name for name in members(pack(tmp_path, [pattern], {}, EPOCH)) if not name.endswith(("d", "e"))
        ] == picked
    else:
        with pytest.raises(MissingFile, match="matches no file"):
            pack(tmp_path, [pattern], {}, EPOCH)


@pytest.mark.parametrize("pattern", ["**/" * 40 + "zz", "*a" * 40 + "zz", "**a" * 40 + "zz"])
def test_a_pattern_of_many_wildcards_ends_at_once(tmp_path: Path, pattern: str) -> None:
    write(tmp_path, {"a/" * 40 + "a" * 200: b""})
    with pytest.raises(MissingFile, match="matches no file"):
        pack(tmp_path, [pattern], {}, EPOCH)


def test_made_files_join_in_and_change_the_digest(tmp_path: Path) -> None:
    write(tmp_path, {"Dockerfile": b"FROM scratch\n"})
    plain = pack(tmp_path, ["Dockerfile"], {}, EPOCH)
    joined = pack(tmp_path, ["Dockerfile"], {"lock/image.lock.yaml": b"a: 1\n"}, EPOCH)
    assert joined.file_count == 2
    assert list(members(joined)) == ["Dockerfile", "lock", "lock/image.lock.yaml"]
    assert joined.sha256 != plain.sha256 != pack(tmp_path, ["Dockerfile"], {}, EPOCH + 1).sha256
    with pytest.raises(UsageError, match="is made by the build and stands in the folder too"):
        pack(tmp_path, ["Dockerfile"], {"Dockerfile": b""}, EPOCH)
    for name in ("../out", "/abs", "a//b", ".git/hooks/x", ""):
        with pytest.raises(UsageError, match="is no name for a file of the context"):
            pack(tmp_path, ["Dockerfile"], {name: b""}, EPOCH)


@pytest.mark.parametrize("target", ["../outside.txt", "/etc/passwd", "sub/../../outside.txt", "step"])
def test_symlinks_that_leave_the_folder_are_refused(tmp_path: Path, target: str) -> None:
    folder = write(tmp_path / "in", {"sub/x": b"x"})
    (tmp_path / "outside.txt").write_text("secret")
    (folder / "step").symlink_to("../outside.txt")
    (folder / "link").symlink_to(target)
    with pytest.raises(UsageError, match="is a symlink that leaves the folder"):
        pack(folder, ["link"], {}, EPOCH)
    # What is not listed is not looked at.
    assert pack(folder, ["sub/x"], {}, EPOCH).file_count == 1


def test_an_absolute_symlink_is_refused_though_it_lands_inside(tmp_path: Path) -> None:
    """It would name this checkout's place, and point elsewhere in the image."""
    write(tmp_path, {"sub/x": b"x"})
    (tmp_path / "link").symlink_to(tmp_path / "sub" / "x")
    with pytest.raises(UsageError, match="is a symlink that leaves the folder"):
        pack(tmp_path, ["link"], {}, EPOCH)


def test_symlinks_inside_the_folder_stay_symlinks_and_dangling_ones_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"sub/x": b"x"})
    (tmp_path / "link").symlink_to("sub/x")
    (tmp_path / "folder").symlink_to("sub")
    found = members(pack(tmp_path, ["**"], {}, EPOCH))
    assert (found["link"].linkname, found["folder"].linkname) == ("sub/x", "sub")
    assert "folder/x" not in found
    (tmp_path / "dangling").symlink_to("sub/gone")
    with pytest.raises(MissingFile, match="is a symlink to nothing"):
        pack(tmp_path, ["**"], {}, EPOCH)


def test_pipes_and_sockets_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is neither a file nor a symlink"):
        pack(tmp_path, ["*"], {}, EPOCH)


@pytest.mark.parametrize("pattern", SECRET_NAMES)
def test_files_that_hold_secrets_by_custom_are_refused_even_where_listed(tmp_path: Path, pattern: str) -> None:
    name = pattern.replace("*", "x")
    write(tmp_path, {f"sub/{name}": b"s3cr3t"})
    with pytest.raises(UsageError, match="must not enter a build context"):
        pack(tmp_path, [f"sub/{name}"], {}, EPOCH)
    with pytest.raises(UsageError, match="must not enter a build context"):
        pack(tmp_path, ["**"], {}, EPOCH)


def test_a_backslash_in_a_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a\\b": b""})
    with pytest.raises(UsageError, match="is no name for a file of the context"):
        pack(tmp_path, ["*"], {}, EPOCH)


def test_a_read_error_is_a_disk_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"x": b"", "y/z": b""})

    def failing(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(context, "open_regular", failing)
    with pytest.raises(DiskFailure, match=r"x: reading the build context: input/output error"):
        pack(tmp_path, ["x"], {}, EPOCH)
    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(DiskFailure, match="reading the build context"):
        pack(tmp_path, ["x"], {}, EPOCH)
