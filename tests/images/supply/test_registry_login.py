"""Logins as docker keeps them: in its file, in the environment, and behind credential helpers that are real programs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.errors import AuthFailure, SlipwayError, UsageError
from slipway.images.registry_login import Challenge, Login, Logins, challenges, logins_from

AUTH = base64.b64encode(b"someone:se:cret").decode()


@pytest.mark.parametrize(
    ("registry", "key"),
    [
        ("docker.io", "https://index.docker.io/v1/"),
        ("r.example:5000", "r.example:5000"),
        ("r.example", "https://r.example"),
    ],
)
def test_a_login_is_found_under_docker_s_names(tmp_path: Path, registry: str, key: str) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"auths": {key: {"auth": AUTH}, "other.example": {"auth": "bad"}}})
    )
    logins = logins_from({"DOCKER_CONFIG": str(tmp_path)})
    assert logins.login(registry) == Login("someone", "se:cret")
    assert logins.login("elsewhere.example") is None
    assert "se:cret" not in repr(logins.login(registry))
    with pytest.raises(AuthFailure, match="cannot be read"):
        logins.login("other.example")


def test_the_environment_comes_before_the_file_and_no_file_is_no_login(tmp_path: Path) -> None:
    (tmp_path / ".docker").mkdir()
    (tmp_path / ".docker" / "config.json").write_text(json.dumps({"auths": {"r.example": {"identitytoken": "idt"}}}))
    home = {"HOME": str(tmp_path)}
    assert logins_from(home).login("r.example") == Login(identity_token="idt")
    text = json.dumps({"auths": {"r.example": {"username": "u", "password": "p"}, "empty.example": {}}})
    logins = logins_from({**home, "DOCKER_AUTH_CONFIG": text})
    assert logins.login("r.example") == Login("u", "p")
    assert logins.login("empty.example") is None
    assert logins_from({"HOME": str(tmp_path / "nobody")}).login("r.example") is None
    with pytest.raises(UsageError, match="is not JSON"):
        logins_from({"DOCKER_AUTH_CONFIG": "{"})
    (tmp_path / ".docker" / "config.json").unlink()
    (tmp_path / ".docker" / "config.json").mkdir()
    with pytest.raises(SlipwayError, match="reading docker's logins"):
        logins_from(home)


def test_a_credential_helper_is_asked_on_stdin_and_once(
    tmp_path: Path, helpers_on_path: Callable[[str, str], None]
) -> None:
    log = tmp_path / "asked"
    helpers_on_path(
        "docker-credential-box",
        "import json, sys\nserver = sys.stdin.read()\n"
        f"open({str(log)!r}, 'a').write(sys.argv[1] + ' ' + server + '\\n')\n"
        "print(json.dumps({'ServerURL': server, 'Username': '<token>' if 'tok' in server else 'u', 'Secret': 'p'}))",
    )
    logins = Logins({"credHelpers": {"r.example": "box", "tok.example": "box"}})
    assert [logins.login("r.example") for _ in range(2)] == [Login("u", "p")] * 2
    assert logins.login("tok.example") == Login(identity_token="p")
    assert log.read_text().splitlines() == ["get r.example", "get tok.example"]
    assert Logins({"credsStore": "box"}).login("docker.io") == Login("u", "p")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('credentials not found in native keychain'); raise SystemExit(1)", None),
        ("print('locked: hunter2'); raise SystemExit(3)", "exit code 3"),
        ("print('hunter2')", "something else than a login"),
        ("print('[\"hunter2\"]')", "something else than a login"),
    ],
)
def test_a_helper_without_an_answer_is_no_login_or_an_error_that_shows_nothing_secret(
    helpers_on_path: Callable[[str, str], None], text: str, said: str | None
) -> None:
    helpers_on_path("docker-credential-box", text)
    logins = Logins({"credHelpers": {"r.example": "box"}})
    if said is None:
        assert logins.login("r.example") is None
        return
    with pytest.raises(AuthFailure, match=said) as caught:
        logins.login("r.example")
    assert "hunter2" not in str(caught.value)


def test_a_helper_that_is_not_there_or_no_name_is_told() -> None:
    with pytest.raises(AuthFailure, match="docker-credential-nobox: is not installed"):
        Logins({"credHelpers": {"r.example": "nobox"}}).login("r.example")
    with pytest.raises(AuthFailure, match="no name of a credential helper"):
        Logins({"credHelpers": {"r.example": "../box"}}).login("r.example")


def test_challenges_are_read_bearer_first() -> None:
    bearer = 'Bearer realm="https://auth.example/token",service="r.example",scope="repository:a/b:pull,push"'
    assert challenges(['Basic realm="x"', bearer]) == (
        Challenge("bearer", "https://auth.example/token", "r.example", "repository:a/b:pull,push"),
        Challenge("basic", "x"),
    )
    assert challenges([f'{bearer}, Basic realm="y"'])[1] == Challenge("basic", "y")
    assert challenges(["Negotiate", ""]) == ()


@given(st.text(max_size=80))
def test_any_challenge_is_read_or_left(text: str) -> None:
    assert all(one.scheme in {"basic", "bearer"} for one in challenges([text, f"Bearer {text}"]))
