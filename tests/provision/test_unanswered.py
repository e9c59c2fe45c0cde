"""Settings, credentials and networks that keep AWS from answering are told apart, each with its exit code and next step."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slipway.errors import AuthFailure, NetworkFailure, UsageError
from slipway.provision.account import Account

PROFILES = """
[profile sso]
sso_start_url=https://login.invalid
sso_region=us-east-1
sso_account_id=123456789012
sso_role_name=r
[profile session]
sso_session=q
sso_account_id=123456789012
sso_role_name=r
[sso-session q]
sso_start_url=https://login.invalid
sso_region=us-east-1
[profile fails]
credential_process=false
[profile chatty]
credential_process=echo hello
[profile gone]
credential_process=/nonexistent/program
[profile lost]
role_arn=arn:aws:iam::123456789012:role/x
source_profile=nobody
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """boto3's settings file, with keys in the environment and nothing else."""
    file = tmp_path / "config"
    file.write_text(PROFILES)
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (
        ("AWS_CONFIG_FILE", str(file)),
        ("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none")),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("HOME", str(tmp_path)),
    ):
        monkeypatch.setenv(name, value)
    return file


def test_a_profile_that_is_not_there_is_an_auth_failure(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nope")
    with pytest.raises(AuthFailure, match=r"AWS_PROFILE: .*\(nope\) could not be found.*log in again"):
        Account("us-east-2").identity()


@pytest.mark.parametrize("url", ["foo", "http://127.0.0.1:99999"])
def test_an_endpoint_that_is_no_address_is_a_usage_error(
    settings: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL: cannot be used"):
        Account("us-east-2").identity()


def test_a_settings_file_that_cannot_be_read_is_a_usage_error(settings: Path) -> None:
    settings.write_text("[[[\nx")
    with pytest.raises(UsageError, match="AWS_CONFIG_FILE: Unable to parse"):
        Account("us-east-2").identity()


def test_one_key_of_two_asks_for_a_login(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AuthFailure, match=r"missing: AWS_SECRET_ACCESS_KEY.*log in again"):
        Account("us-east-2").identity()


@pytest.mark.parametrize("profile", ["sso", "session", "fails", "chatty", "gone", "lost"])
def test_a_profile_without_usable_credentials_asks_for_a_login(
    settings: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    monkeypatch.setenv("AWS_PROFILE", profile)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(AuthFailure, match=r"the credentials cannot be used.*log in again"):
        Account("us-east-2").identity()


@contextmanager
def portal(status: int) -> Iterator[str]:
    """A network's log-in page, which answers everything."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", "18")
            self.end_headers()
            self.wfile.write(b"<html>Log in</html")

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [200, 302, 403])
def test_a_log_in_page_of_the_network_is_no_answer_of_aws(
    settings: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    with portal(status) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        for ask in (Account("us-east-2").identity, lambda: Account("us-east-2").tagged("m1-pd")):
            with pytest.raises(NetworkFailure, match="AWS"):
                ask()
