"""Stale bytecode, leaked secrets and root: what is found in an image, and what is not taken for it."""

from __future__ import annotations

import base64
import compileall
import gzip
import importlib.util
import json
import os
import py_compile
import re
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipway.errors import CheckFailed
from slipway.images import image_gates, oci_archive, secret_search
from slipway.images.image_gates import Leak, PycState

from .conftest import File, MadeImage

Make = Callable[..., MadeImage]

SOURCE = b"x = 1\n"


def pyc(flags: int = 0, mtime: int = 1000, size: int = len(SOURCE)) -> bytes:
    return importlib.util.MAGIC_NUMBER + struct.pack("<III", flags, mtime, size) + b"code"


def hashed_pyc(source: bytes = SOURCE, flags: int = 3, magic: bytes = importlib.util.MAGIC_NUMBER) -> bytes:
    return magic + struct.pack("<I", flags) + importlib.util.source_hash(source) + b"code"


def state(make_image: Make, *layers: list[File]) -> PycState:
    return image_gates.inspect(oci_archive.read(make_image(*layers).path), {}).pyc


def test_pyc_of_each_kind_are_counted(make_image: Make) -> None:
    found = state(
        make_image,
        [
            File("m/fresh.py", SOURCE),
            File("m/__pycache__/fresh.cpython-313.pyc", pyc()),
            File("m/hashed.py", SOURCE, mtime=5),
            File("m/__pycache__/hashed.cpython-313.opt-1.pyc", hashed_pyc()),
            File("m/late.py", SOURCE, mtime=1001),
            File("m/__pycache__/late.cpython-313.pyc", pyc()),
            File("m/grown.py", SOURCE + b"y"),
            File("m/__pycache__/grown.cpython-313.pyc", pyc()),
            File("m/cut.py", SOURCE),
            File("m/__pycache__/cut.cpython-313.pyc", pyc()[:9]),
            File("m/alone.pyc", pyc()),
            File("m/__pycache__/gone.cpython-313.pyc", pyc()),
        ],
    )
    names = tuple(f"m/__pycache__/{name}.cpython-313.pyc" for name in ("cut", "grown", "late"))
    assert found == PycState(hashed=1, timed=1, stale=3, orphaned=2, stale_names=names, compared=1)
    assert found.total == 7


def test_a_later_layer_that_touches_the_source_makes_its_pyc_stale(make_image: Make) -> None:
    first = [File("m.py", SOURCE), File("__pycache__/m.cpython-313.pyc", pyc())]
    assert state(make_image, first).stale == 0
    assert state(make_image, first, [File("m.py", SOURCE, mtime=2000)]).stale == 1


def test_what_a_later_layer_deletes_is_not_counted(make_image: Make) -> None:
    stale = [File("m/a.py", SOURCE, mtime=1), File("m/__pycache__/a.cpython-313.pyc", pyc())]
    assert state(make_image, stale).stale == 1
    for gone in ("m/__pycache__/.wh.a.cpython-313.pyc", ".wh.m", "m/__pycache__/.wh..wh..opq"):
        assert state(make_image, stale, [File(gone)]).stale == 0, gone
    replaced = [File("m", type=tarfile.SYMTYPE, link="n")]
    folder = [File("m", type=tarfile.DIRTYPE), *stale]
    assert state(make_image, folder, replaced).total == 0
    # An opaque folder hides older layers; what its own layer writes there stays.
    again = [File("m/.wh..wh..opq"), File("m/a.py", SOURCE, mtime=1), File("m/a.pyc", pyc())]
    assert state(make_image, stale, again).total == 1


def test_pyc_that_python_itself_wrote_are_judged_as_python_does(make_image: Make, tmp_path: Path) -> None:
    files = []
    for name, mode in (
        ("timed", py_compile.PycInvalidationMode.TIMESTAMP),
        ("hashed", py_compile.PycInvalidationMode.CHECKED_HASH),
    ):
        path = tmp_path / f"{name}.py"
        path.write_bytes(SOURCE)
        os.utime(path, (1000, 1000))
        assert compileall.compile_file(path, quiet=1, invalidation_mode=mode)
        cached = Path(importlib.util.cache_from_source(str(path)))
        files += [File(f"{name}.py", SOURCE), File(f"__pycache__/{cached.name}", cached.read_bytes())]
    assert state(make_image, files) == PycState(1, 1, 0, 0, compared=1)
    # What a rewritten time does to them.
    for file in files:
        file.mtime = 500
    assert state(make_image, files) == PycState(1, 0, 1, 0, (files[1].name,), compared=1)


def test_pyc_that_are_never_compared_with_their_source_are_stale_and_named(make_image: Make, tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_bytes(b"old = 1\n")
    py_compile.compile(
        str(path), str(tmp_path / "m.pyc"), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    files = [File("m.py", SOURCE), File("__pycache__/m.cpython-313.pyc", (tmp_path / "m.pyc").read_bytes())]
    named = "__pycache__/m.cpython-313.pyc (is never compared with its source)"
    assert state(make_image, files) == PycState(0, 0, 1, 0, (named,))
    with pytest.raises(CheckFailed, match=r"is never compared with its source(.|\n)*checked-hash"):
        image_gates.refuse("image", image_gates.inspect(oci_archive.read(make_image(files).path), {}))
    # Also where it fits today, and whichever Python it is of.
    assert state(make_image, [files[0], File("m.pyc", hashed_pyc(flags=1, magic=b"xx\r\n"))]).stale == 1


def test_a_hash_is_compared_where_its_python_is_known(make_image: Make) -> None:
    source = File("m.py", SOURCE)
    assert state(make_image, [source, File("m.pyc", hashed_pyc())]).compared == 1
    assert state(make_image, [source, File("m.pyc", hashed_pyc(b"old"))]) == PycState(0, 0, 1, 0, ("m.pyc",))
    # Of 3.13.0, by itself; and of one that this Python does not know.
    known = bytes.fromhex("f30d0d0a03000000e786e2893651120e")
    assert state(make_image, [source, File("m.pyc", known)]) == PycState(1, 0, 0, 0, compared=1)
    assert state(make_image, [source, File("m.pyc", hashed_pyc(magic=b"xx\r\n"))]) == PycState(1, 0, 0, 0)
    # A large source is not held in memory for it.
    large = b"#" * 2_000_000
    assert state(make_image, [File("m.py", large), File("m.pyc", hashed_pyc(large))]) == PycState(1, 0, 0, 0)
    assert state(make_image, [source, File("m.pyc", hashed_pyc(flags=7))]).stale == 1


SECRET = b"token-of-ours-0123456789"


@pytest.mark.parametrize(
    ("image", "where"),
    [
        ({"layers": [[File("a/b", b"x" * 100 + SECRET)]]}, "layer 0: a/b"),
        ({"layers": [[File("a")], [File(f"x{SECRET.decode()}")]]}, f"layer 1: x{SECRET.decode()}"),
        ({"layers": [[File("l", type=tarfile.SYMTYPE, link=SECRET.decode())]]}, "layer 0: l"),
        ({"process": {"Env": [f"TOKEN={SECRET.decode()}"]}}, "config"),
        ({"process": {"Labels": {"a": SECRET.decode()}}}, "config"),
        ({"extra": {"history": [{"created_by": f"RUN curl -u {SECRET.decode()}"}]}}, "history"),
    ],
)
def test_a_secret_is_found_wherever_it_is(make_image: Make, image: dict[str, object], where: str) -> None:
    layers = image.pop("layers", [[File("a")]])
    made = oci_archive.read(make_image(*layers, **image).path)  # type: ignore[misc]
    secrets = {"conf": b"index = " + SECRET + b"\n", "other": b"another secret 12345"}
    found = image_gates.inspect(made, secrets)
    assert found.leaks == (Leak("conf", where),)
    with pytest.raises(CheckFailed, match=re.escape(f"conf in {where}")):
        image_gates.refuse("image", found)


def test_a_file_that_a_later_layer_deletes_still_leaks(make_image: Make) -> None:
    made = oci_archive.read(make_image([File("a", SECRET)], [File(".wh.a")]).path)
    assert image_gates.inspect(made, {"s": SECRET}).leaks == (Leak("s", "layer 0: a"),)


def test_layers_of_the_base_may_say_what_they_like(make_image: Make) -> None:
    made = oci_archive.read(make_image([File("a", SECRET)], [File("b", SECRET)]).path)
    assert image_gates.inspect(made, {"s": SECRET}, base_layers=1).leaks == (Leak("s", "layer 1: b"),)


def test_stale_bytecode_and_root_are_refused_with_the_way_out(make_image: Make) -> None:
    stale = [File("m.py", SOURCE, mtime=1), File("m.pyc", pyc())]
    with pytest.raises(CheckFailed, match="has 1 stale") as caught:
        image_gates.refuse("image", image_gates.inspect(oci_archive.read(make_image(stale).path), {}))
    assert "  m.pyc\n" in caught.value.why
    assert "ARG SOURCE_DATE_EPOCH" in caught.value.remedy
    with pytest.raises(CheckFailed, match="runs as root"):
        image_gates.refuse("image", image_gates.inspect(oci_archive.read(make_image([File("a")], process={}).path), {}))
    image_gates.refuse("image", image_gates.inspect(oci_archive.read(make_image([File("a")]).path), {"s": SECRET}))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(st.integers((1 << 20) - 40, (1 << 20) + 40))
def test_a_secret_across_the_chunks_that_are_read_is_found(make_image: Make, before: int) -> None:
    made = oci_archive.read(make_image([File("a", b"." * before + SECRET + b"." * 50)]).path)
    assert image_gates.inspect(made, {"s": SECRET}).leaks == (Leak("s", "layer 0: a"),)


CONF = b"[global]\nindex-url = https://builder:s3cr%t-w0rd@host.example/simple\ntrusted-host = host.example\n"


def leaked(make_image: Make, data: bytes, secret: bytes = CONF) -> bool:
    """Whether `data` in the image counts as leaking `secret`."""
    made = oci_archive.read(make_image([File("a", data)]).path)
    return image_gates.inspect(made, {"s": secret}).leaks == (Leak("s", "layer 0: a"),)


@pytest.mark.parametrize(
    "part", [CONF, b"s3cr%t-w0rd", b"builder:s3cr%t-w0rd", b"https://builder:s3cr%t-w0rd@host.example/simple"]
)
@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode, base64.encodebytes])
def test_base64_of_a_secret_is_found_wherever_it_begins(
    make_image: Make, part: bytes, before: int, encode: Callable[[bytes], bytes]
) -> None:
    assert leaked(make_image, b"x=" + encode(b"~" * before + part + b"\xff\xfe"))
    assert leaked(make_image, b"\x00\xff" * 520_000 + encode(b"~" * before + part))
    assert leaked(make_image, json.dumps({"auth": encode(b"~" * before + part).decode()}).encode())


@given(st.binary(min_size=6, max_size=40), st.binary(max_size=9), st.binary(max_size=9))
def test_base64_forms_are_what_no_neighbour_changes(part: bytes, before: bytes, after: bytes) -> None:
    forms = list(secret_search.base64_forms([part]))
    assert all(len(form) >= 7 for form in forms)
    assert any(form in base64.b64encode(before + part + after) for form in forms)


def test_base64_of_a_secret_in_the_config_is_found(make_image: Make) -> None:
    process = {"User": "7", "Env": [f"AUTH={base64.b64encode(b'builder:s3cr%t-w0rd').decode()}"]}
    made = oci_archive.read(make_image([File("a")], process=process).path)
    assert image_gates.inspect(made, {"s": CONF}).leaks == (Leak("s", "config"),)


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(CONF),
        gzip.compress(b"first") + gzip.compress(CONF),
        gzip.compress(os.urandom(1_500_000) + CONF),
        gzip.compress(b"." * ((1 << 20) - 30) + CONF + b"." * (3 << 20)),
        gzip.compress(base64.b64encode(CONF)),
        gzip.compress(os.urandom(2_000_000)) + gzip.compress(CONF) + b"tail",
        gzip.compress(CONF)[:-8],
    ],
    ids=["one", "second member", "far in", "across pieces", "base64 inside", "far second", "cut"],
)
def test_a_secret_in_gzip_is_found(make_image: Make, data: bytes) -> None:
    assert leaked(make_image, data)


def test_gzip_is_unpacked_up_to_a_limit(make_image: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(bytes(9_000_000) + CONF)
    assert leaked(make_image, bomb)
    monkeypatch.setattr(secret_search, "MOST_UNPACKED_BYTES", 5_000_000)
    assert not leaked(make_image, bomb)
    # Looking like gzip hides nothing.
    assert leaked(make_image, b"\x1f\x8b\x08" + CONF)


def test_a_deep_config_is_searched_to_its_bottom(make_image: Make) -> None:
    text = SECRET.decode()
    deep: object = text
    for _ in range(400):
        deep = [{"a": deep}]
    made = oci_archive.read(make_image([File("a")], extra={"deep": deep}).path)
    assert image_gates.inspect(made, {"s": SECRET}).leaks == (Leak("s", "config"),)


KEY = b"-----BEGIN PRIVATE KEY-----\n" + b"k" * 64 + b"\n" + b"l" * 64 + b"\n-----END PRIVATE KEY-----\n"


def certificate(letter: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n" + letter * 64 + b"\n" + letter * 30 + b"\n-----END CERTIFICATE-----\n"


def test_what_is_searched_for_is_what_is_secret_by_itself() -> None:
    conf = b"[global]\n# a comment that is long enough\nindex-url = https://me:pass@host/simple\ntimeout = 180\n"
    parts = (b"https://me:pass@host/simple", b"me:pass", b"me:pass@host")
    assert secret_search.patterns(conf) == (conf.strip(), *parts)
    assert secret_search.patterns(b"[global]\nindex-url = https://pypi.org/simple\n") == (
        b"[global]\nindex-url = https://pypi.org/simple",
    )
    assert secret_search.patterns(b"short") == ()
    assert b"k" * 64 in secret_search.patterns(KEY)
    own = certificate(b"a") + certificate(b"b")
    assert b"a" * 64 + b"\n" + b"a" * 30 in secret_search.patterns(own)
    bundle = b"".join(certificate(bytes([97 + number])) for number in range(20))
    assert secret_search.patterns(bundle) == (bundle.strip(),)


@given(st.binary(max_size=300))
def test_a_secret_file_itself_always_counts_as_leaked(secret: bytes) -> None:
    patterns = secret_search.patterns(secret)
    assert all(len(pattern) >= 6 for pattern in patterns)
    if len(secret.strip()) >= 16:
        assert any(pattern in secret for pattern in patterns)


@pytest.mark.parametrize(
    ("user", "root"),
    [
        ("65532:65532", False),
        ("65532", False),
        ("2147483647:0", False),
        ("nobody", True),
        ("+0:0", True),
        ("+1000", True),
        ("00065532", True),
        ("0x10", True),
        ("-1", True),
        ("4294967296", True),
        ("1000:", True),
        ("1000:users", True),
        (" 1000", True),
        ("", True),
        (None, True),
        ("0", True),
        ("000", True),
        ("root", True),
        ("root:nobody", True),
        ("0:65532", True),
        (":65532", True),
    ],
)
def test_root_is_told_by_name_number_or_silence(make_image: Make, user: str | None, root: bool) -> None:
    made = oci_archive.read(make_image([File("a")], process={"User": user}).path)
    assert image_gates.runs_as_root(made) is root
    assert image_gates.inspect(made, {}).root is root


PASSWD = "etc/passwd"
LINES = b"root:x:0:0::/root:/bin/sh\nengine:x:1000:1000::/:/bin/sh\n"


@pytest.mark.parametrize(
    ("user", "layers", "root"),
    [
        ("engine", [[File(PASSWD, LINES)]], False),
        ("engine:0", [[File(PASSWD, LINES)], [File("a")]], False),
        ("nobody", [[File(PASSWD, LINES)]], True),
        ("toor", [[File(PASSWD, LINES)], [File(PASSWD, LINES + b"toor::0:0::/:/bin/sh\n")]], True),
        ("toor", [[File(PASSWD, b"toor::0:0::/:/bin/sh\n")], [File(PASSWD, b"toor::7:7::/:/bin/sh\n")]], False),
        ("engine", [[File(PASSWD, LINES + b"engine::0:0::/:/bin/sh\n")]], True),
        ("engine", [[File(PASSWD, b"engine::+0:0::/:/bin/sh\n")]], True),
        ("engine", [[File(PASSWD, b"engine\n")]], True),
        ("engine", [[File(PASSWD, LINES)], [File("etc/.wh.passwd")]], True),
        ("engine", [[File(PASSWD, LINES)], [File(PASSWD, type=tarfile.SYMTYPE, link="../x")]], True),
        ("engine", [[File(PASSWD, LINES)], [File("etc", type=tarfile.SYMTYPE, link="x")]], True),
        ("1000", [[File(PASSWD, b"1000::0:0::/:/bin/sh\n")]], False),
    ],
)
def test_a_user_by_name_is_who_the_images_own_passwd_says(
    make_image: Make, user: str, layers: list[list[File]], root: bool
) -> None:
    made = oci_archive.read(make_image(*layers, process={"User": user}).path)
    assert image_gates.inspect(made, {}, base_layers=1).root is root


@pytest.mark.parametrize(
    ("secret", "leaked"),
    [
        (b"deb [trusted=yes] https://user:t0ken9@host/debian trixie main\n", b"t0ken9"),
        (b"deb [trusted=yes] https://user:t0ken9@host/debian trixie main\n", b"user:t0ken9"),
        (b"deb [trusted=yes] https://user:t0ken9@host/debian trixie main\n", b"https://user:t0ken9@host/debian"),
        (b"registry=//user:t0ken9@host/npm\n", b"t0ken9"),
        (b"a\nproxy https://ghp_0123456789abcdef@host\n", b"ghp_0123456789abcdef"),
        (b"a\nproxy https://abc@host.example\n", b"abc@host.example"),
        (b"index-url = https://me:p%40ss%2Fword@host/simple\n", b"p@ss/word"),
        (b"index-url = https://me:p@ssword@host/simple\n", b"p@ssword"),
        (b"machine host login me password hunter2\n", b"hunter2"),
        (b"//registry/:_authToken=abcdefgh\n", b"abcdefgh"),
    ],
)
def test_each_part_of_a_secret_that_lets_somebody_in_is_searched_for(
    make_image: Make, secret: bytes, leaked: bytes
) -> None:
    made = oci_archive.read(make_image([File("a", b"." * 9 + leaked + b"." * 9)]).path)
    assert image_gates.inspect(made, {"s": secret}).leaks == (Leak("s", "layer 0: a"),)


@pytest.mark.parametrize(
    "public", [b"https://deb.example.org/debian", b"trusted=yes", b"user", b"host/debian", b"12345"]
)
def test_what_a_secret_file_says_of_public_things_is_no_leak(make_image: Make, public: bytes) -> None:
    secret = (
        b"deb [trusted=yes] https://deb.example.org/debian trixie main\ndeb https://user:12345@host/debian x main\n"
    )
    made = oci_archive.read(make_image([File("a", b"." * 9 + public + b"." * 9)]).path)
    assert image_gates.inspect(made, {"s": secret}).leaks == ()
