"""Pull requests proved, picked and packed, against a real git server on loopback."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from slipway.errors import (
    AuthFailure,
    DiskFailure,
    IntegrityMismatch,
    LockDrift,
    MissingFile,
    NetworkFailure,
    UsageError,
)
from slipway.images import git_repository
from slipway.images.git_pick import Committer, Picked, PullRequestHead, cherry_pick
from slipway.images.git_repository import open_repository
from slipway.images.git_source import Assertion, Proof, PullRequest, archive, prove

COMMITTER = Committer("Slipway", "slipway@example.invalid", 1_780_000_000)
LAGUNA = "python/models/laguna.py"


class Upstream:
    """A repository with pull requests, as a forge keeps them; `url` is where a git server gives it out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.clock = 1_750_000_000
        self.git("init", "--quiet", "--initial-branch=main", str(folder), cwd=folder.parent)
        self.git("config", "uploadpack.allowAnySHA1InWant", "true")

    def git(self, *words: str, cwd: Path | None = None, stdin: bytes | None = None) -> str:
        self.clock += 60
        who = {"NAME": "Ada", "EMAIL": "ada@example.invalid", "DATE": f"{self.clock} +0200"}
        env = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}
        env |= {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        ran = subprocess.run(
            ["git", *words], cwd=cwd or self.folder, env=env, input=stdin, check=False, capture_output=True
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.decode().strip()

    def commit(self, subject: str, files: dict[str, str], body: str = "") -> str:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", subject, *(["-m", body] if body else []))
        return self.head()

    def head(self) -> str:
        return self.git("rev-parse", "HEAD")

    def pull_request(self, number: int, files: dict[str, str], start: str = "main") -> str:
        """Two commits on a branch from `start`, published as a forge does; the work tree is back on main after."""
        self.git("checkout", "--quiet", "--detach", start)
        self.commit(f"Draft of {number}", {})
        head = self.commit(f"Finish {number}", files)
        self.git("update-ref", f"refs/pull/{number}/head", head)
        self.git("checkout", "--quiet", "main")
        return head

    def squash(self, number: int, title: str, files: dict[str, str]) -> str:
        self.pull_request(number, files)
        return self.commit(f"{title} (#{number})", files)

    def revert(self, commit: str, subject: str = "") -> str:
        self.git("revert", "--no-edit", commit)
        if subject:
            self.git("commit", "--quiet", "--amend", "-m", subject)
        return self.head()


@contextmanager
def served(base: Path, port: int) -> Iterator[str]:
    """`git daemon` on loopback for every repository below `base`."""
    program = Path(subprocess.check_output(["git", "--exec-path"], text=True).strip()) / "git-daemon"
    argv = [str(program), "--listen=127.0.0.1", f"--port={port}", f"--base-path={base}", "--export-all", "--reuseaddr"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as daemon:
        try:
            for _ in range(500):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                threading.Event().wait(0.01)
            yield f"git://127.0.0.1:{port}"
        finally:
            daemon.terminate()


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[Upstream]:
    base = tmp_path_factory.mktemp("upstream")
    made = Upstream(base / "engine")
    made.root = made.commit("Start", {LAGUNA: "gate = 'per-head'\n", "README.md": "one\ntwo\nthree\n"})
    made.gating = made.squash(10, "Per-element gating", {LAGUNA: "gate = 'per-element'\n"})
    made.window = made.squash(11, "No window (for M.1)", {"python/window.py": "WINDOW = None\n"})
    made.branch = made.pull_request(12, {"python/router.py": "route = 1\n"})
    made.git("merge", "--quiet", "--no-ff", "-m", "Merge pull request #12 from ada/router", made.branch)
    made.merged = made.head()
    made.tag = made.git("rev-parse", "HEAD")
    made.git("tag", "-a", "v1", "-m", "one")
    with served(base, free_port()) as url:
        made.url = f"{url}/engine/.git"
        yield made


def proof(upstream: Upstream, commit: str, *numbers: int, **extra: object) -> Proof:
    wanted = [PullRequest(number) for number in numbers]
    cache = upstream.folder.parent / "cache"
    return prove(upstream.url, commit, wanted, extra.get("assertions", ()), cache)  # type: ignore[arg-type]


class TestProof:
    def test_squash_merges_and_real_merges_are_found_by_their_subjects(self, upstream: Upstream) -> None:
        found = proof(upstream, upstream.merged, 10, 11, 12)
        assert [(one.number, one.merge_commit) for one in found.pull_requests] == [
            (10, upstream.gating),
            (11, upstream.window),
            (12, upstream.merged),
        ]
        assert found.commit == upstream.merged
        assert found.tree == upstream.git("rev-parse", f"{upstream.merged}^{{tree}}")
        assert found.commit_epoch == int(upstream.git("show", "-s", "--format=%ct", upstream.merged))
        assert found.as_json()["pull_requests"][0]["subject"] == "Per-element gating (#10)"

    def test_a_recorded_merge_commit_is_checked_by_ancestry_and_subject(
        self, upstream: Upstream, tmp_path: Path
    ) -> None:
        def with_merge(number: int, merge: str) -> Proof:
            return prove(upstream.url, upstream.merged, [PullRequest(number, merge)], (), tmp_path)

        assert with_merge(10, upstream.gating).pull_requests[0].merge_commit == upstream.gating
        with pytest.raises(LockDrift, match=r"is of another change \('No window \(for M.1\) \(#11\)'\)"):
            with_merge(10, upstream.window)
        # The head of a squash-merged pull request is no ancestor, which is the mistake people make.
        head = upstream.git("rev-parse", "refs/pull/10/head")
        with pytest.raises(
            LockDrift, match=rf"{head} is not an ancestor; its history has pull request 10 at {upstream.gating}"
        ):
            with_merge(10, head)

    def test_a_commit_before_the_merge_does_not_contain_it_and_cherry_pick_is_named(self, upstream: Upstream) -> None:
        with pytest.raises(LockDrift, match=r"pull request 11 is not merged into it .*cherry-pick") as refused:
            proof(upstream, upstream.gating, 10, 11)
        assert upstream.git("rev-parse", "refs/pull/11/head") in str(refused.value)

    def test_a_number_that_the_server_does_not_know_is_said_to_be_unknown(self, upstream: Upstream) -> None:
        with pytest.raises(LockDrift, match="the server knows no pull request of that number"):
            proof(upstream, upstream.merged, 1)

    @pytest.mark.parametrize("ref", ["main", "v1", "refs/heads/main", "", "3f668733", "A" * 40, "--upload-pack=x"])
    def test_anything_but_a_full_commit_is_refused_with_its_reason(self, upstream: Upstream, ref: str) -> None:
        with pytest.raises(UsageError, match=r"not a commit .*branches and tags move"):
            proof(upstream, ref, 10)

    def test_the_sha_of_an_annotated_tag_is_refused_though_it_has_forty_digits(self, upstream: Upstream) -> None:
        with pytest.raises(UsageError, match="is a tag, not a commit"):
            proof(upstream, upstream.git("rev-parse", "v1"), 10)

    def test_what_the_cache_holds_is_proved_without_a_server(self, upstream: Upstream, tmp_path: Path) -> None:
        first = prove(upstream.url, upstream.merged, [PullRequest(10)], (), tmp_path)
        moved = upstream.folder.with_name("gone")
        upstream.folder.rename(moved)
        try:
            assert prove(upstream.url, upstream.merged, [PullRequest(10)], (), tmp_path) == first
            with pytest.raises(MissingFile):
                prove(upstream.url, upstream.merged, [PullRequest(10)], (), tmp_path / "other")
        finally:
            moved.rename(upstream.folder)

    def test_a_pull_request_whose_merge_cannot_be_asked_for_is_still_drift(
        self, upstream: Upstream, tmp_path: Path
    ) -> None:
        prove(upstream.url, upstream.gating, (), (), tmp_path)
        (cache,) = tmp_path.glob("*.git")
        with socket.create_server(("127.0.0.1", 0)) as gone:
            dead = f"git://127.0.0.1:{gone.getsockname()[1]}/engine"
        target = open_repository(dead, tmp_path).folder
        shutil.rmtree(target)
        cache.rename(target)
        with pytest.raises(LockDrift, match="the server does not answer"):
            prove(dead, upstream.gating, [PullRequest(11)], (), tmp_path)

    def test_a_head_that_landed_without_its_number_is_pointed_out(self, upstream: Upstream, tmp_path: Path) -> None:
        upstream.git("update-ref", "refs/pull/60/head", upstream.gating)
        with pytest.raises(LockDrift, match=rf"its head {upstream.gating} is an ancestor all the same"):
            prove(upstream.url, upstream.merged, [PullRequest(60)], (), tmp_path)

    def test_a_local_path_is_a_repository_too(self, upstream: Upstream, tmp_path: Path) -> None:
        found = prove(str(upstream.folder), upstream.merged, [PullRequest(10)], (), tmp_path)
        assert found.pull_requests[0].merge_commit == upstream.gating


class TestReverts:
    """Each test works on its own copy, given out from a path."""

    @pytest.fixture
    def own(self, upstream: Upstream, tmp_path: Path) -> Upstream:
        upstream.git("clone", "--quiet", "--mirror", str(upstream.folder), str(tmp_path / "own" / ".git"))
        upstream.git("--git-dir", str(tmp_path / "own" / ".git"), "config", "core.bare", "false")
        copy = Upstream.__new__(Upstream)
        copy.folder, copy.url, copy.clock = tmp_path / "own", str(tmp_path / "own"), upstream.clock
        copy.git("reset", "--quiet", "--hard")
        copy.gating = upstream.gating
        return copy

    def check(self, own: Upstream, tmp_path: Path) -> Proof:
        return prove(own.url, own.head(), [PullRequest(10)], (), tmp_path / "cache")

    def test_a_revert_by_git_is_refused_and_named(self, own: Upstream, tmp_path: Path) -> None:
        revert = own.revert(own.gating)
        with pytest.raises(LockDrift, match=rf"pull request 10 was reverted by {revert}"):
            self.check(own, tmp_path)
        # The same commit is fine as long as it stands before the revert.
        assert prove(own.url, own.gating, [PullRequest(10)], (), tmp_path / "cache").pull_requests

    @pytest.mark.parametrize(
        "subject",
        [
            'Revert "Per-element gating (#10)"',
            'Revert "Per-element gating (#10)" (#77)',
            'Revert "Per-element gating" (#77)',
        ],
    )
    def test_a_revert_known_by_its_subject_alone_is_refused(self, own: Upstream, tmp_path: Path, subject: str) -> None:
        own.revert(own.gating, subject)
        with pytest.raises(LockDrift, match="was reverted by"):
            self.check(own, tmp_path)

    def test_a_revert_of_the_revert_stands_and_a_third_falls_again(self, own: Upstream, tmp_path: Path) -> None:
        first = own.revert(own.gating)
        second = own.revert(first)
        assert self.check(own, tmp_path).pull_requests[0].merge_commit == own.gating
        own.revert(second)
        with pytest.raises(LockDrift, match="was reverted by"):
            self.check(own, tmp_path)

    def test_a_forges_reverts_refer_to_pull_requests_by_number(self, own: Upstream, tmp_path: Path) -> None:
        own.revert(own.gating, 'Revert "something retitled" (#77)\n\nReverts sgl-project/engine#10')
        with pytest.raises(LockDrift, match="was reverted by"):
            self.check(own, tmp_path)
        own.commit("Bring it back (#78)", {}, "Reverts sgl-project/engine#77")
        assert self.check(own, tmp_path).pull_requests

    def test_the_revert_of_another_change_and_talk_of_reverting_do_not_matter(
        self, own: Upstream, tmp_path: Path
    ) -> None:
        own.commit('Revert "No window (for M.1) (#11)" (#77)', {"python/window.py": "WINDOW = 1\n"})
        own.commit("Explain why we do not revert Per-element gating (#78)", {}, f"See {own.gating} and #10.")
        assert self.check(own, tmp_path).pull_requests

    def test_a_revert_inside_a_merged_branch_counts(self, own: Upstream, tmp_path: Path) -> None:
        own.git("checkout", "--quiet", "--detach", "main")
        branch = own.revert(own.gating)
        own.git("checkout", "--quiet", "main")
        own.git("merge", "--quiet", "--no-ff", "-m", "Merge pull request #90 from x/y", branch)
        with pytest.raises(LockDrift, match=f"was reverted by {branch}"):
            self.check(own, tmp_path)

    def test_a_quiet_undoing_is_caught_by_a_content_assertion(self, own: Upstream, tmp_path: Path) -> None:
        wanted = (Assertion(LAGUNA, contains=("per-element",), lacks=("per-head",)),)
        before = own.head()
        assert prove(own.url, before, [PullRequest(10)], wanted, tmp_path / "cache").assertions == wanted
        quiet = own.commit("Tidy up (#80)", {LAGUNA: "gate = 'per-head'\n"})
        with pytest.raises(LockDrift, match=r"laguna.py: lacks 'per-element'"):
            prove(own.url, quiet, [PullRequest(10)], wanted, tmp_path / "cache")
        both = own.commit("Both (#81)", {LAGUNA: "gate = 'per-head' or 'per-element'\n"})
        with pytest.raises(LockDrift, match=r"laguna.py: still holds 'per-head'"):
            prove(own.url, both, [PullRequest(10)], wanted, tmp_path / "cache")
        with pytest.raises(MissingFile, match=r"gone.py: is no file at this commit"):
            prove(own.url, before, (), [Assertion("gone.py", lacks=("x",))], tmp_path / "cache")


class TestServer:
    def test_a_commit_that_the_server_dropped_is_missing(self, upstream: Upstream, tmp_path: Path) -> None:
        with pytest.raises(MissingFile, match="the server does not give it"):
            prove(upstream.url, "0123456789abcdef" * 2 + "01234567", (), (), tmp_path)

    def test_a_commit_that_no_branch_reaches_is_fetched_by_its_sha(self, upstream: Upstream, tmp_path: Path) -> None:
        orphan = upstream.git("commit-tree", f"{upstream.merged}^{{tree}}", "-p", upstream.merged, "-m", "Nowhere")
        assert prove(upstream.url, orphan, [PullRequest(10)], (), tmp_path).commit == orphan

    def test_a_server_with_a_cut_off_history_proves_nothing(self, upstream: Upstream, tmp_path: Path) -> None:
        shallow = tmp_path / "shallow"
        upstream.git("clone", "--quiet", "--bare", "--depth=1", f"file://{upstream.folder}", str(shallow))
        with pytest.raises(LockDrift, match="the server's history is cut off"):
            prove(str(shallow), upstream.merged, (), (), tmp_path / "cache")

    def test_no_server_and_no_repository_are_told_apart(
        self, upstream: Upstream, tmp_path: Path, unused_port: int
    ) -> None:
        with pytest.raises(NetworkFailure, match="Connection refused"):
            prove(f"git://127.0.0.1:{unused_port}/x", upstream.merged, (), (), tmp_path)
        with pytest.raises(MissingFile, match="check the URL"):
            prove(str(tmp_path / "nothing"), upstream.merged, (), (), tmp_path)

    @pytest.mark.parametrize("url", ["ext::sh -c 'touch ran'", "--upload-pack=touch ran", "", "foo::bar"])
    def test_a_url_that_would_run_a_command_is_refused(self, upstream: Upstream, tmp_path: Path, url: str) -> None:
        with pytest.raises((UsageError, MissingFile, NetworkFailure)):
            prove(url, upstream.merged, (), (), tmp_path / "cache")
        assert not list(tmp_path.rglob("ran"))

    def test_a_token_in_the_url_is_shown_nowhere(self, upstream: Upstream, tmp_path: Path, unused_port: int) -> None:
        class Refusing(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="x"')
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        with HTTPServer(("127.0.0.1", unused_port), Refusing) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://ada:s3cr3t@127.0.0.1:{unused_port}/engine.git"
            with pytest.raises(AuthFailure) as refused:
                prove(url, upstream.merged, (), (), tmp_path)
            server.shutdown()
        assert "s3cr3t" not in str(refused.value) + repr(refused.value.as_json())
        assert f"http://***@127.0.0.1:{unused_port}/engine.git" in str(refused.value)
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"s3cr3t" in path.read_bytes()]

    def test_the_users_git_configuration_has_no_say(self, upstream: Upstream, tmp_path: Path) -> None:
        config = '[url "file:///nowhere/"]\n  insteadOf = git://\n[core]\n  hooksPath = /nowhere\n'
        Path(os.environ["HOME"], ".gitconfig").write_text(config)
        os.environ["GIT_DIR"] = "/nowhere"
        assert prove(upstream.url, upstream.merged, [PullRequest(10)], (), tmp_path).pull_requests

    def test_a_damaged_cache_is_named_and_how_to_mend_it(self, upstream: Upstream, tmp_path: Path) -> None:
        prove(upstream.url, upstream.merged, [PullRequest(10)], (), tmp_path)
        (cache,) = tmp_path.glob("*.git")
        for pack in cache.rglob("*.pack"):
            pack.chmod(0o644)
            pack.write_bytes(b"not a pack")
        for loose in (cache / "objects").glob("??/*"):
            loose.unlink()
        with pytest.raises(IntegrityMismatch, match="remove the cache and run again") as refused:
            prove(upstream.url, upstream.merged, [PullRequest(10)], (), tmp_path)
        assert str(cache) in str(refused.value)

    def test_a_cache_that_cannot_be_made_is_a_disk_failure(self, upstream: Upstream, tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("")
        with pytest.raises(DiskFailure, match="making the cache of a repository"):
            prove(upstream.url, upstream.merged, (), (), tmp_path / "cache")

    def test_a_machine_without_git_is_told_so(self, upstream: Upstream, tmp_path: Path) -> None:
        os.environ["PATH"] = str(tmp_path)
        with pytest.raises(UsageError, match="is not installed"):
            prove(upstream.url, upstream.merged, (), (), tmp_path / "cache")

    def test_a_server_that_never_answers_is_given_up(
        self, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(git_repository, "FETCH_TIMEOUT_S", 0.3)
        with socket.create_server(("127.0.0.1", 0)) as mute:
            url = f"git://127.0.0.1:{mute.getsockname()[1]}/engine"
            with pytest.raises(NetworkFailure, match="did not finish within"):
                prove(url, upstream.merged, (), (), tmp_path)


@pytest.fixture(scope="module")
def heads(upstream: Upstream) -> dict[int, str]:
    return {
        20: upstream.pull_request(20, {"python/new.py": "new = 1\n"}, upstream.gating),
        21: upstream.pull_request(21, {"README.md": "one\nTWO\nthree\n"}, upstream.gating),
        22: upstream.pull_request(22, {"README.md": "one\nzwei\nthree\n"}, upstream.gating),
        23: upstream.pull_request(23, {"python/late.py": "late = 1\n"}, upstream.merged),
    }


class TestCherryPick:
    def pick(self, upstream: Upstream, cache: Path, *heads: PullRequestHead, base: str = "") -> Picked:
        return cherry_pick(upstream.url, base or upstream.window, heads, COMMITTER, cache)

    def test_two_machines_get_the_same_commit(self, upstream: Upstream, heads: dict[int, str], tmp_path: Path) -> None:
        wanted = [PullRequestHead(20, heads[20]), PullRequestHead(21, heads[21])]
        first = self.pick(upstream, tmp_path / "one", *wanted)
        os.environ |= {"TZ": "Asia/Tokyo", "GIT_COMMITTER_NAME": "Someone", "USER": "else", "EMAIL": "x@y"}
        before = os.umask(0o077)
        try:
            second = self.pick(upstream, tmp_path / "two", *wanted)
        finally:
            os.umask(before)
        assert first == second
        assert first.commit_epoch == COMMITTER.epoch
        other_order = self.pick(upstream, tmp_path / "one", *reversed(wanted))
        assert other_order.tree == first.tree
        assert other_order.commit != first.commit

    def test_the_author_is_kept_and_the_result_can_be_proved_and_packed(
        self, upstream: Upstream, heads: dict[int, str], tmp_path: Path
    ) -> None:
        picked = self.pick(upstream, tmp_path, PullRequestHead(20, heads[20]))
        cache = next(tmp_path.glob("*.git"))
        shown = upstream.git("--git-dir", str(cache), "show", "-s", "--format=%an|%ae|%cn|%ct|%s|%P", picked.commit)
        assert shown == f"Ada|ada@example.invalid|Slipway|{COMMITTER.epoch}|Draft of 20 (#20)|{upstream.window}"
        found = prove(upstream.url, picked.commit, [PullRequest(10), PullRequest(20)], (), tmp_path)
        assert [one.number for one in found.pull_requests] == [10, 20]
        packed = archive(upstream.url, picked.commit, tmp_path / "s.tar", tmp_path)
        with tarfile.open(packed.path) as tar:
            assert "python/new.py" in tar.getnames()

    def test_a_conflict_is_refused_with_the_names_of_the_files(
        self, upstream: Upstream, heads: dict[int, str], tmp_path: Path
    ) -> None:
        with pytest.raises(LockDrift, match=r"pull request 22: its head .* conflicts in README.md;"):
            self.pick(upstream, tmp_path, PullRequestHead(21, heads[21]), PullRequestHead(22, heads[22]))

    def test_a_branch_from_a_newer_main_would_smuggle_changes_in(
        self, upstream: Upstream, heads: dict[int, str], tmp_path: Path
    ) -> None:
        with pytest.raises(UsageError, match=r"would bring 2 merged pull requests along \(#11, #12\)"):
            self.pick(upstream, tmp_path, PullRequestHead(23, heads[23]), base=upstream.gating)

    def test_a_force_pushed_head_is_drift_and_a_longer_branch_is_not(
        self, upstream: Upstream, heads: dict[int, str], tmp_path: Path
    ) -> None:
        before = upstream.pull_request(24, {"a.py": "1\n"}, upstream.gating)
        upstream.git(
            "update-ref",
            "refs/pull/24/head",
            upstream.git("commit-tree", f"{before}^{{tree}}", "-p", before, "-m", "More"),
        )
        assert self.pick(upstream, tmp_path / "one", PullRequestHead(24, before)).commit
        after = upstream.pull_request(24, {"a.py": "2\n"}, upstream.gating)
        with pytest.raises(LockDrift, match=rf"its head was {before}, and is {after} now: it was force-pushed"):
            self.pick(upstream, tmp_path / "two", PullRequestHead(24, before))
        # Who fetched it before keeps the reviewed commit.
        assert self.pick(upstream, tmp_path / "one", PullRequestHead(24, before)).commit

    def test_what_cannot_be_meant_is_refused(self, upstream: Upstream, heads: dict[int, str], tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="not a commit"):
            self.pick(upstream, tmp_path, PullRequestHead(20, "main"))
        with pytest.raises(UsageError, match="not a commit"):
            self.pick(upstream, tmp_path, base="main")
        with pytest.raises(MissingFile, match="pull request 99"):
            self.pick(upstream, tmp_path, PullRequestHead(99, heads[20]))
        with pytest.raises(LockDrift, match="is contained already"):
            upstream.git("update-ref", "refs/pull/30/head", upstream.gating)
            self.pick(upstream, tmp_path, PullRequestHead(30, upstream.gating))
        stranger = upstream.git("commit-tree", f"{upstream.root}^{{tree}}", "-m", "No parents")
        upstream.git("update-ref", "refs/pull/31/head", stranger)
        with pytest.raises(UsageError, match="shares no history"):
            self.pick(upstream, tmp_path, PullRequestHead(31, stranger))


class TestArchive:
    def tree(self, upstream: Upstream, entries: list[tuple[str, str, str, str]]) -> str:
        """A commit of hand-made tree entries (mode, type, object or text, name); checks of git itself are left out."""
        raw = b""
        for mode, kind, value, name in entries:
            sha = value if kind != "blob" else upstream.git("hash-object", "-w", "--stdin", stdin=value.encode())
            raw += f"{mode} {name}".encode() + b"\0" + bytes.fromhex(sha)
        tree = upstream.git("hash-object", "-t", "tree", "-w", "--literally", "--stdin", stdin=raw)
        return upstream.git("commit-tree", tree, "-m", "Hostile")

    def test_the_same_commit_gives_the_same_bytes_from_two_caches(self, upstream: Upstream, tmp_path: Path) -> None:
        first = archive(upstream.url, upstream.merged, tmp_path / "one.tar", tmp_path / "a")
        second = archive(str(upstream.folder), upstream.merged, tmp_path / "sub" / "two.tar", tmp_path / "b")
        assert first.sha256 == second.sha256 == hashlib.sha256((tmp_path / "one.tar").read_bytes()).hexdigest()
        assert first.size_bytes == (tmp_path / "one.tar").stat().st_size
        epoch = int(upstream.git("show", "-s", "--format=%ct", upstream.merged))
        with tarfile.open(first.path) as tar:
            members = {member.name: member for member in tar}
            assert tar.extractfile(LAGUNA).read() == b"gate = 'per-element'\n"  # type: ignore[union-attr]
        assert {"README.md", "python", "python/models", LAGUNA} <= set(members)
        assert first.file_count == sum(member.isfile() for member in members.values())
        assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members.values()} == {(0, 0, "", "", epoch)}
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []

    def test_a_hostile_tree_runs_nothing_and_changes_no_byte(self, upstream: Upstream, tmp_path: Path) -> None:
        attributes = "*.txt export-subst\nkept.bin export-ignore filter=evil\n"
        entries = [
            ("100644", "blob", attributes, ".gitattributes"),
            ("100644", "blob", "[filter]\n", ".gitconfig"),
            ("100644", "blob", '[submodule "x"]\n  path = sub\n  url = ext::sh -c touch% ran\n', ".gitmodules"),
            ("100755", "blob", "#!/bin/sh\n", "hooks.sh"),
            ("100644", "blob", "bytes", "kept.bin"),
            ("120000", "blob", "kept.bin", "link"),
            ("160000", "commit", upstream.root, "sub"),
            ("100644", "blob", "$Format:%H %d$\n", "version.txt"),
        ]
        commit = self.tree(upstream, entries)
        packed = archive(upstream.url, commit, tmp_path / "one.tar", tmp_path / "a")
        assert packed.submodules == ("sub",)
        with tarfile.open(packed.path) as tar:
            assert tar.extractfile("version.txt").read() == b"$Format:%H %d$\n"  # type: ignore[union-attr]
            assert tar.getmember("kept.bin").mode == 0o644
            assert tar.getmember("hooks.sh").mode == 0o755
            assert tar.getmember("link").linkname == "kept.bin"
            assert tar.getmember("sub").isdir()
        upstream.git("tag", "decorated", commit)
        assert archive(upstream.url, commit, tmp_path / "two.tar", tmp_path / "b").sha256 == packed.sha256
        assert not list(tmp_path.rglob("ran"))

    @pytest.mark.parametrize(
        ("entry", "said"),
        [
            (("100644", "blob", "x", ".."), "holds the path '..'"),
            (("100644", "blob", "x", ".GIT"), "holds the path '.GIT'"),
            (("100644", "blob", "x", "a\\b"), "holds the path"),
            (("120000", "blob", "../../etc/passwd", "link"), "holds the symlink 'link' to '../../etc/passwd'"),
            (("120000", "blob", "/etc/passwd", "link"), "holds the symlink 'link' to '/etc/passwd'"),
        ],
    )
    def test_what_would_land_outside_is_refused(
        self, upstream: Upstream, tmp_path: Path, entry: tuple[str, str, str, str], said: str
    ) -> None:
        commit = self.tree(upstream, [entry])
        with pytest.raises(UsageError) as refused:
            archive(upstream.url, commit, tmp_path / "out" / "one.tar", tmp_path / "a")
        assert said in str(refused.value)
        assert list((tmp_path / "out").iterdir()) == []

    def test_a_tree_with_a_dotdot_folder_is_refused(self, upstream: Upstream, tmp_path: Path) -> None:
        inner = upstream.git("rev-parse", f"{upstream.root}^{{tree}}")
        commit = self.tree(upstream, [("40000", "tree", inner, "..")])
        with pytest.raises(UsageError, match=r"holds the path '\.\./README.md'"):
            archive(upstream.url, commit, tmp_path / "one.tar", tmp_path / "a")

    def test_names_that_are_no_text_are_packed_as_they_are(self, upstream: Upstream, tmp_path: Path) -> None:
        blob = upstream.git("hash-object", "-w", "--stdin", stdin=b"x")
        raw = b"100644 caf\xe9\0" + bytes.fromhex(blob)
        tree = upstream.git("hash-object", "-t", "tree", "-w", "--literally", "--stdin", stdin=raw)
        packed = archive(
            upstream.url, upstream.git("commit-tree", tree, "-m", "x"), tmp_path / "one.tar", tmp_path / "a"
        )
        assert b"caf\xe9" in packed.path.read_bytes()
        with tarfile.open(packed.path) as tar:
            assert tar.getnames() == ["caf\udce9"]

    def test_a_target_that_cannot_be_written_is_a_disk_failure(self, upstream: Upstream, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DiskFailure, match="writing the source archive"):
            archive(upstream.url, upstream.merged, tmp_path / "file" / "one.tar", tmp_path / "a")
