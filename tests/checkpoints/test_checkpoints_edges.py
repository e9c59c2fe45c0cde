"""What comes from outside on the edges: other answers than were asked for, secrets in what is said, proxies, odd token files."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import close_session

from slipway.checkpoints import lock as locks
from slipway.checkpoints import sources, upstream
from slipway.checkpoints.hub import Hub, hub_from_environment, masked
from slipway.checkpoints.transport import Failed, Transport, is_loopback
from slipway.errors import DiskFailure, LockDrift, NetworkFailure, SlipwayError, UsageError
from slipway.progress import silent

TOKEN = "hf_Secret123"
REPO = "acme/Model"
COMMIT = "a" * 40


@pytest.fixture(autouse=True)
def fresh_client() -> Iterator[None]:
    """The library's client reads the proxies once, when it is made."""
    close_session()
    yield
    close_session()


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler, str], None]) -> Iterator[str]:
    """A server that lets `answer` speak; it is told the token that came with the request."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            answer(self, self.headers.get("Authorization", "").rpartition(" ")[2])

        do_POST = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def with_json(**changes: object) -> Callable[[BaseHTTPRequestHandler, str], None]:
    file = {"rfilename": "model.safetensors", "size": 9, "blobId": "b" * 40, "lfs": None}
    body = json.dumps({"id": REPO, "sha": COMMIT, "siblings": [file], **changes}).encode()

    def answer(request: BaseHTTPRequestHandler, _: str) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


def resolve(url: str, revision: str = "main", repo: str = REPO) -> locks.CheckpointLock:
    return locks.resolve(repo, revision, endpoint=url, token=None)


# --- the answer is about what was asked ---


@pytest.mark.parametrize("revision", ["d" * 40, "D" * 40])
def test_another_commit_than_the_one_asked_for_is_drift(revision: str) -> None:
    with answering(with_json()) as url, pytest.raises(LockDrift, match=f"another commit .got '{COMMIT}'"):
        resolve(url, revision)


def test_another_repository_than_the_one_asked_for_is_drift_that_names_it() -> None:
    with answering(with_json(id="acme/Renamed")) as url, pytest.raises(LockDrift, match="got 'acme/Renamed'"):
        resolve(url)


def test_the_commit_asked_for_and_a_name_in_other_letters_are_locked() -> None:
    with answering(with_json()) as url:
        assert resolve(url, COMMIT, "ACME/model").revision == COMMIT


def test_a_shard_without_a_readable_header_is_locked_without_a_count_of_tensors() -> None:
    def answer(request: BaseHTTPRequestHandler, token: str) -> None:
        if "/api/" in request.path:
            with_json()(request, token)
            return
        request.send_response(200)
        request.send_header("Content-Length", "9")
        request.end_headers()
        request.wfile.write(b"\xff" * 9)

    with answering(answer) as url:
        assert resolve(url).summary.tensors is None


# --- secrets ---


def refuse(request: BaseHTTPRequestHandler, token: str) -> None:
    request.send_response(403)
    request.send_header("X-Error-Code", f"bad {token}")
    request.send_header("Content-Length", "0")
    request.end_headers()


def redirect(request: BaseHTTPRequestHandler, token: str) -> None:
    request.send_response(302)
    request.send_header("Location", f"ftp://x/{token}")
    request.send_header("Content-Length", "0")
    request.end_headers()


def babble(request: BaseHTTPRequestHandler, token: str) -> None:
    request.wfile.write(f"HTP {token}\r\n\r\n".encode())


@pytest.mark.parametrize("answer", [refuse, redirect, babble])
def test_a_token_that_a_hub_echoes_is_not_shown(answer: Callable[[BaseHTTPRequestHandler, str], None]) -> None:
    with answering(answer) as url:
        with pytest.raises(Failed) as failed:
            Transport(Hub(url, TOKEN), 5).get(f"{url}/x")
        assert "***" in failed.value.text
        assert TOKEN.lower() not in failed.value.text.lower()
        with pytest.raises(SlipwayError) as refused:
            locks.resolve(REPO, "main", endpoint=url, token=TOKEN)
        assert TOKEN.lower() not in str(refused.value).lower()


def test_what_is_shown_has_no_token_in_any_letters_and_no_password() -> None:
    Hub(token=TOKEN)
    said = f"{TOKEN.lower()} {TOKEN.upper()} http://me:pw@host/x?y=a@b https://host/a@b ssh://git@host"
    assert masked(said) == "*** *** http://***@host/x?y=a@b https://host/a@b ssh://git@host"


@pytest.mark.parametrize("text", ["http://me:s3cret@host/", "http://me:s3c/ret@host/", "ftp://me:s3cret@host"])
def test_a_source_with_a_password_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(UsageError, match="--source") as refused:
        sources.read([text], Hub())
    assert "ret@" not in str(refused.value)
    assert "s3c" not in str(refused.value)


# --- token files ---


def test_a_token_file_that_is_a_pipe_or_too_long_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.environ["HF_TOKEN_PATH"] = str(tmp_path / "pipe")
    with pytest.raises(DiskFailure, match="token file"):
        hub_from_environment()
    os.environ["HF_TOKEN_PATH"] = "/dev/zero"
    with pytest.raises(DiskFailure, match="token file"):
        hub_from_environment()
    (tmp_path / "long").write_bytes(b"x" * (1 << 17))
    os.environ["HF_TOKEN_PATH"] = str(tmp_path / "long")
    with pytest.raises(UsageError, match="too long"):
        hub_from_environment()


def test_a_token_file_may_be_a_link_and_no_file_at_all(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(f"{TOKEN}  \n")
    (tmp_path / "link").symlink_to("real")
    os.environ["HF_TOKEN_PATH"] = str(tmp_path / "link")
    assert hub_from_environment().token == TOKEN
    os.environ["HF_TOKEN_PATH"] = os.devnull
    assert hub_from_environment().token is None


# --- proxies ---


def test_no_proxy_is_asked_for_this_machine() -> None:
    os.environ |= {"http_proxy": "http://127.0.0.1:9", "all_proxy": "http://127.0.0.1:9"}
    with answering(with_json()) as url:
        for host in ("127.0.0.1", "localhost"):
            here = url.replace("127.0.0.1", host)
            assert resolve(here).revision == COMMIT
            Transport(Hub(here), 5).get(f"{here}/x").close()
    with pytest.raises(NetworkFailure):
        resolve("http://hub.invalid")
    with pytest.raises(Failed):
        Transport(Hub("http://hub.invalid"), 5).get("http://hub.invalid/x")


@pytest.mark.parametrize(
    ("netloc", "here"),
    [("127.0.0.1:80", True), ("127.9.9.9", True), ("[::1]:80", True), ("LOCALHOST", True), ("localhost.", True),
     ("10.0.0.1", False), ("localhost.example.com", False), ("", False), ("[", False)],
)  # fmt: skip
def test_loopback_is_told_from_other_hosts(netloc: str, here: bool) -> None:
    assert is_loopback(netloc) is here


@pytest.mark.parametrize(
    ("name", "value"),
    [("all_proxy", "socks5://u:s3cret@h:1"), ("http_proxy", "ftp://x"), ("https_proxy", "http://[::1")],
)
def test_a_proxy_that_cannot_be_used_is_named_and_not_the_hub(name: str, value: str) -> None:
    os.environ[name] = value
    with pytest.raises(UsageError, match=f"^{name}: names a proxy that cannot be used") as refused:
        upstream.model_info(Hub("http://hub.invalid"), REPO, "main")
    assert "s3cret" not in str(refused.value)
    close_session()
    assert upstream.tensor_count(Hub("http://hub.invalid"), REPO, "main", [], silent) is None


def test_the_fetcher_names_a_proxy_that_it_cannot_use() -> None:
    os.environ["http_proxy"] = "socks5://u:s3cret@127.0.0.1:1"
    with pytest.raises(Failed, match=r"http_proxy \(socks5://\*\*\*@127.0.0.1:1\) is no http") as failed:
        Transport(Hub("http://hub.invalid"), 5).get("http://hub.invalid/x")
    assert not failed.value.again
