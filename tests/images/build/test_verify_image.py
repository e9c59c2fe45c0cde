"""What differs between two images, file by file."""

from __future__ import annotations

import tarfile
from collections.abc import Callable

from slipway.images import oci_archive, verify_image

from .conftest import File, MadeImage

Make = Callable[..., MadeImage]


def differ(make_image: Make, first: list[File], second: list[File], limit: int = 20) -> tuple[str, ...]:
    one = oci_archive.read(make_image(first, name="one.tar").path)
    two = oci_archive.read(make_image(second, name="two.tar", compression="zstd").path)
    return verify_image.differences(one, two, limit).lines()


def test_equal_images_do_not_differ_however_their_layers_are_compressed(make_image: Make) -> None:
    assert differ(make_image, [File("a", b"1")], [File("a", b"1")]) == ()


def test_each_way_in_which_a_file_differs_is_named(make_image: Make) -> None:
    first = [
        File("content", b"12"),
        File("gone", b""),
        File("mode", b"", mode=0o644),
        File("size", b"1"),
        File("time", b"", mtime=5),
        File("type", b""),
        File("user", b"", uid=0),
    ]
    second = [
        File("content", b"21"),
        File("mode", b"", mode=0o664),
        File("new", b""),
        File("size", b"123"),
        File("time", b"", mtime=9),
        File("type", type=tarfile.SYMTYPE, link="mode"),
        File("user", b"", uid=7),
    ]
    assert differ(make_image, first, second) == (
        "layer 0: content: content",
        "layer 0: gone: is only in the first image",
        "layer 0: mode: mode 0644 → 0664",
        "layer 0: new: is only in the second image",
        "layer 0: size: size 1 → 3, content",
        "layer 0: time: mtime 5 → 9",
        "layer 0: type: type file → symlink, link  → mode, content",
        "layer 0: user: uid 0 → 7",
    )


def test_only_the_first_differences_are_named_and_all_are_counted(make_image: Make) -> None:
    first = [File(f"f{number:03}", b"1") for number in range(50)]
    second = [File(f"f{number:03}", b"2") for number in range(50)]
    told = differ(make_image, first, second, limit=3)
    assert told == ("layer 0: f000: content", "layer 0: f001: content", "layer 0: f002: content", "and 47 more")


def test_the_same_files_in_another_order_are_a_difference_too(make_image: Make) -> None:
    files = [File("a"), File("b")]
    (told,) = differ(make_image, files, files[::-1])
    assert "not the same tar" in told


def test_the_config_and_missing_layers_are_compared(make_image: Make) -> None:
    process = {"User": "7", "Env": ["A=1", "B=2"], "Labels": {"x": "1"}}
    other = {"User": "8", "Env": ["A=1", "B=3"], "Labels": {"x": "1", "y": "z" * 500}}
    one = oci_archive.read(make_image([File("a")], name="one.tar", process=process).path)
    two = oci_archive.read(make_image([File("a")], [File("b")], name="two.tar", process=other).path)
    told = verify_image.differences(one, two)
    assert [difference.name for difference in told.listed] == [
        "config.Env[1]",
        "config.Labels.y",
        "config.User",
        "the layer",
    ]
    assert told.count == 4
    assert not told.equal
    assert max(map(len, told.lines())) < 200
    assert verify_image.differences(one, one).equal
    assert verify_image.differences(two, one).lines()[-1] == "layer 1: the layer: is only in the first image"
