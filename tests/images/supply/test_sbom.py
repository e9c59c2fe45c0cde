"""Bills of materials and provenance: exact, from the lock alone, and the same bytes each time."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.errors import MissingFile, UsageError
from slipway.images import provenance, sbom
from slipway.images.image_name import parse
from slipway.images.provenance import Build, Material
from slipway.images.requirements_file import PythonPackage, normal_name, python_packages
from slipway.images.sbom import Components, Deb, Download, GitSource

ROOT = Path(__file__).resolve().parents[3]
DIGEST = "sha256:" + "ab" * 32
ONE, TWO = "1" * 64, "2" * 64
COMMIT = "c" * 40

FULL = Components(
    engine="sglang",
    engine_version="0.5.18",
    variant="efa",
    lock_digest=DIGEST,
    epoch_s=1_790_000_000,
    base=parse(f"docker.io/library/debian:13@{DIGEST}"),
    python=(
        PythonPackage("torch", "2.11.0+cu130", (ONE,)),
        PythonPackage("numpy", "2.3.0", (ONE, TWO)),
        PythonPackage("smg", "1.0", (ONE,), "https://wheels.example/smg-1.0-py3-none-any.whl"),
    ),
    debs=(Deb("libnuma1", "2:2.0.19-1+b1~x", "amd64", ONE),),
    git=(GitSource("sglang", "https://github.com/sgl-project/sglang.git", COMMIT, (28604, 28400)),),
    downloads=(Download("cubins.zip", "https://files.example/cubins.zip", TWO),),
)


def test_every_pin_is_a_component_with_its_digest_and_package_url() -> None:
    document = json.loads(sbom.render(FULL))
    parts = {part["name"]: part for part in document["components"]}
    purls = {name: part["purl"] for name, part in parts.items()}
    assert purls == {
        "docker.io/library/debian": f"pkg:oci/debian@{DIGEST}?repository_url=docker.io/library/debian&tag=13",
        "torch": "pkg:pypi/torch@2.11.0%2Bcu130",
        "numpy": "pkg:pypi/numpy@2.3.0",
        "smg": "pkg:pypi/smg@1.0?download_url=https://wheels.example/smg-1.0-py3-none-any.whl",
        "libnuma1": "pkg:deb/debian/libnuma1@2:2.0.19-1%2Bb1~x?arch=amd64",
        "sglang": f"pkg:github/sgl-project/sglang@{COMMIT}",
        "cubins.zip": f"pkg:generic/cubins.zip?checksum=sha256:{TWO}&download_url=https://files.example/cubins.zip",
    }
    assert parts["torch"]["hashes"] == [{"alg": "SHA-256", "content": ONE}]
    assert "hashes" not in parts["numpy"], "which of the two files was installed is not known"
    assert [one["content"] for one in parts["numpy"]["externalReferences"][0]["hashes"]] == [ONE, TWO]
    assert [one["value"] for one in parts["sglang"]["properties"]] == ["28400", "28604"]
    root = document["metadata"]["component"]
    assert (root["name"], root["version"]) == ("sglang-efa", "0.5.18")
    assert document["dependencies"][0]["dependsOn"] == sorted(purls.values())
    assert document["compositions"] == [{"aggregate": "unknown", "assemblies": [purls["docker.io/library/debian"]]}]
    assert document["metadata"]["timestamp"] == "2026-09-21T14:13:20Z"


def test_the_document_follows_from_the_lock_alone() -> None:
    shuffled = replace(FULL, python=FULL.python[::-1], git=(replace(FULL.git[0], pull_requests=(28400, 28604)),))
    assert sbom.render(shuffled) == sbom.render(FULL)
    other = sbom.render(replace(FULL, lock_digest="sha256:" + "cd" * 32))
    assert json.loads(other)["serialNumber"] != json.loads(sbom.render(FULL))["serialNumber"]
    elsewhere = replace(FULL, git=(replace(FULL.git[0], url="https://git.example/sglang"),))
    assert (
        f"pkg:generic/sglang@{COMMIT}?vcs_url=git%2Bhttps://git.example/sglang%40{COMMIT}"
        in sbom.render(elsewhere).decode()
    )


def test_what_is_not_pinned_or_stands_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="without a digest"):
        sbom.render(replace(FULL, base=parse("debian:13")))
    with pytest.raises(UsageError, match="twice"):
        sbom.render(replace(FULL, debs=FULL.debs * 2))
    with pytest.raises(MissingFile):
        sbom.write(FULL, tmp_path / "no" / "sbom.json")
    sbom.write(FULL, tmp_path / "sbom.json")
    assert (tmp_path / "sbom.json").read_bytes() == sbom.render(FULL)
    assert len(list(tmp_path.iterdir())) == 1


# --- the Python lock


def test_our_own_lock_reads_as_what_it_installs_on_linux() -> None:
    text = (ROOT / "requirements.lock").read_text()
    packages = {package.name: package for package in python_packages(text, "requirements.lock", "3.11")}
    assert "colorama" not in packages, "its marker says win32"
    assert packages["pydantic"].version
    assert all(package.sha256 for package in packages.values())
    written = {match[1]: match[0] for match in re.finditer(r"^([a-z0-9_.-]+)==.*$", text, re.MULTILINE)}
    assert set(packages) <= set(written)
    assert all(";" in written[name] for name in set(written) - set(packages))


def test_markers_extras_comments_and_addresses_are_understood() -> None:
    text = f"""# made by uv
uvicorn[standard]==0.38.0 ; python_full_version >= '3.11' \\
    --hash=sha256:{TWO} \\
    --hash=sha256:{ONE}
    # via -r in.txt
old.Name==1!2.0+cu130 --hash=sha256:{ONE}  # a comment
tomli==2.0 ; python_full_version < '3.11' --hash=sha256:{ONE}
smg @ https://wheels.example/smg-1.13.0%2Bx-py3-none-any.whl#sha256={TWO}
"""
    assert python_packages(text, "x") == (
        PythonPackage("old-name", "1!2.0+cu130", (ONE,)),
        PythonPackage("smg", "1.13.0+x", (TWO,), "https://wheels.example/smg-1.13.0%2Bx-py3-none-any.whl"),
        PythonPackage("uvicorn", "0.38.0", (ONE, TWO)),
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torch==2.11.0", "no sha256 for torch"),
        (f"torch>=2.11.0 --hash=sha256:{ONE}", "not understood"),
        (f"torch --hash=sha256:{ONE}", "not understood"),
        ("--index-url https://x.example/simple", "not understood"),
        ("-e .", "not understood"),
        (f"torch==1 --hash=md5:{ONE}", "not understood"),
        (f"torch==1 evil==2 --hash=sha256:{ONE}", "not understood"),
        (f"torch==1 ; nonsense --hash=sha256:{ONE}", "a marker that is none"),
        (f"torch @ https://x.example/torch.tar.gz --hash=sha256:{ONE}", "no wheel"),
        (f"torch==1 --hash=sha256:{ONE}\nTorch==2 --hash=sha256:{ONE}", "names torch again"),
    ],
)
def test_a_line_that_could_install_something_else_is_refused(line: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        python_packages(line, "x")


hexes = st.text("0123456789abcdef", min_size=64, max_size=64)
package = st.builds(
    PythonPackage,
    st.from_regex(r"[a-z][a-z0-9]{0,8}(?:-[a-z0-9]{1,4})?", fullmatch=True),
    st.from_regex(r"[0-9]{1,2}(?:\.[0-9]{1,2}){0,2}(?:\+cu[0-9]{2})?", fullmatch=True),
    st.lists(hexes, min_size=1, max_size=3, unique=True).map(lambda found: tuple(sorted(found))),
)


@given(st.lists(package, max_size=3, unique_by=lambda one: one.name))
def test_a_written_lock_reads_back(packages: Sequence[PythonPackage]) -> None:
    text = "".join(
        f"{one.name}=={one.version} \\\n"
        + " \\\n".join(f"    --hash=sha256:{found}" for found in one.sha256)
        + "\n    # via x\n"
        for one in packages
    )
    assert python_packages(text, "x") == tuple(sorted(packages, key=lambda one: one.name))
    document = json.loads(sbom.render(replace(FULL, python=tuple(packages), debs=(), git=(), downloads=(), base=None)))
    assert {(one["name"], one["version"]) for one in document["components"]} == {
        (one.name, one.version) for one in packages
    }


@given(st.text(max_size=60))
def test_any_text_is_a_lock_or_is_refused(text: str) -> None:
    try:
        found = python_packages(text, "x")
    except UsageError:
        return
    assert all(one.sha256 and one.name == normal_name(one.name) for one in found)


# --- provenance

BUILD = Build(
    image=parse(f"127.0.0.1:5000/engine:v1@{DIGEST}"),
    config_digest="sha256:" + "cd" * 32,
    lock_digest="sha256:" + "ef" * 32,
    epoch_s=1_790_000_000,
    engine="sglang",
    variant="default",
    builder="buildkit",
    versions={"buildx": "0.13.1", "dockerd": "26.1.5"},
    args={"PYTHON": "3.12"},
    materials=(
        Material("pkg:pypi/torch@2.11.0", {"sha256": ONE}, "torch"),
        Material(f"git+https://git.example/sglang@{COMMIT}", {"gitCommit": COMMIT}),
    ),
)


def test_the_statement_is_about_the_digest_and_names_every_material() -> None:
    statement: dict[str, Any] = json.loads(provenance.render(BUILD))
    assert statement["subject"] == [{"name": "127.0.0.1:5000/engine", "digest": {"sha256": DIGEST[7:]}}]
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["lock"] == {"sha256": "ef" * 32}
    assert [one["uri"] for one in definition["resolvedDependencies"]] == sorted(one.uri for one in BUILD.materials)
    assert statement["predicate"]["runDetails"]["builder"]["version"]["buildx"] == "0.13.1"


def test_equal_builds_have_equal_statements() -> None:
    assert provenance.render(replace(BUILD, materials=BUILD.materials[::-1])) == provenance.render(BUILD)


def test_what_no_digest_names_has_no_provenance() -> None:
    with pytest.raises(UsageError, match="never about a tag"):
        provenance.render(replace(BUILD, image=parse("a/b:v1")))
    with pytest.raises(UsageError, match="digest that is none"):
        provenance.render(replace(BUILD, lock_digest="v1"))
    for digests in ({}, {"sha256": ""}):
        with pytest.raises(UsageError, match="without a digest"):
            provenance.render(replace(BUILD, materials=(Material("pkg:x", digests),)))
