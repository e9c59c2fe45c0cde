"""The commands as users call them: contracts of stdout, exit codes, and never a traceback."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory, copy_checkout: Any) -> Any:
    return copy_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ("build-image", "--dry-run"),
            2,
            "build-image: --engine is missing; sglang, vllm or reference; `invoke --help build-image`",
        ),
        (("plan", "--recipe"), 2, "plan: --recipe needs a value; `invoke --help plan`"),
        (("bench", "--concurrency", "four"), 2, "a flag takes a whole number (got 'four')"),
        (("build-image", "--engine", "sglang", "--dry-run", "--compression", "bzip"), 2, "--compression: is not known"),
        (("build-image", "--engine", "sglang", "--dry-run", "--secret", "ca"), 2, "--secret: is not understood"),
        (("logs", "--stack", "laptop", "--lines", "0"), 2, "--lines: is no number of lines (got 0)"),
        (("plna",), 2, "unknown task (got plna); did you mean plan?"),
        (("plan", "--recipee", "x"), 2, "unknown flag (got --recipee); did you mean --recipe?; `invoke --help plan`"),
        (("build-image", "--no-cash", "--engine", "vllm"), 2, "unknown flag (got --no-cash); did you mean --no-cache?"),
        (("fetch_models",), 2, "did you mean fetch-models?"),
        (("image-build", "--engine", "sglang"), 2, "unknown task (got image-build); did you mean build-image?"),
        (("model-fetch",), 2, "unknown task (got model-fetch); did you mean fetch-models?"),
        (("plan", "help"), 2, "help is no task (got help); `invoke --help plan` shows its flags"),
        (("help", "plan"), 2, "`invoke --help plan` shows its flags"),
        (("help",), 2, "`invoke --list` shows the tasks"),
        (("launch", "--stack", "laptop", "--dry"), 2, "--dry is not known here (got --dry)"),
        (("-R", "launch", "--stack", "laptop"), 2, "(got -R); it is Invoke's own, and would not keep a command from"),
        (("-eR", "launch", "--stack", "laptop"), 2, "did you mean --dry-run?"),
        (("--dry", "recipes"), 2, "`invoke --help recipes` lists the flags"),
        (("bench", "--requests", "many"), 2, "a flag takes a whole number (got 'many')"),
        (("plan", "--recipe", "nope"), 2, "--recipe: no such recipe (got nope)"),
        (("plan", "--recipe", "a", "--stack", "b"), 2, "--recipe: stands beside --stack"),
        (("plan", "--inventory", "x.yaml"), 2, "--inventory: stands without --recipe"),
        (
            ("plan", "--recipe", "laguna-m.1.sglang/h200-bf16", "--inventory", "absent.yaml"),
            5,
            "absent.yaml: no such file",
        ),
        (("plan", "--recipe", "laguna-m.1.sglang/h200-bf16", "--inventory", "stacks"), 2, "is not a regular file"),
        (("plan", "--stack", "nope"), 2, "--stack: no such stack (got nope)"),
        (("plan",), 2, "invoke select --stack laptop"),
        (("recipes", "--hardware", "quantum"), 2, "known: b200, b300, cpu, gb200, gb300, h200, rtx-3090"),
        (("recipes", "--hardware", "3090"), 2, "did you mean rtx-3090?"),
        (("plan", "--recipe", ""), 2, "--recipe: no such recipe"),
        (("verify", "--endpoint", "", "--model", "x"), 2, "endpoint"),
        (("plan", "--recipe", "champion"), 2, "did you mean laguna-s-2.1.vllm/4x3090-int4-champion?"),
        (("logs", "--stack", "laptop"), 5, "nothing was launched here"),
        (("status", "--stack", "laptop"), 1, "does not serve (nothing is launched)"),
        (("verify", "--stack", "laptop"), 5, "nothing is launched"),
        (("verify", "--endpoint", "http://127.0.0.1:9", "--model", "x"), 8, "127.0.0.1:9"),
        (("verify", "--endpoint", "http://127.0.0.1:9"), 2, "--model: is missing"),
        (("verify-models", "--lock", "absent.json", "--dir", "."), 5, "absent.json"),
        (("fetch-models", "--lock", "a", "--recipe", "b"), 2, "--recipe: stands beside --lock"),
        (("fetch-models",), 2, "no stack chosen"),
        (
            ("fetch-models", "--recipe", "laguna-m.1.sglang/h200-bf16"),
            5,
            "run `invoke lock-models --request checkpoints/laguna-m.1.lock-request.json`",
        ),
        (("models", "--dest", "/nonexist"), 5, "--dest /nonexist: no such folder"),
        (("prune-models", "--dest", "stacks/Pulumi.laptop.yaml"), 5, "--dest stacks/Pulumi.laptop.yaml: is no folder"),
        (
            ("plan", "--recipe", "laguna-m.1.sglang/h200-bf16", "--inventory", "nope.yaml"),
            5,
            "nope.yaml: no such file; an inventory document in YAML is read here; check the path",
        ),
        (("report",), 5, "run `invoke demo`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_bad_command_ends_with_its_code_and_says_what_to_do(
    checkout: Any, words: tuple[str, ...], code: int, said: str
) -> None:
    ran = checkout.run(*words)
    assert said in ran.stderr
    assert (ran.returncode, ran.stdout if words[0] != "status" else "") == (code, "")


def test_a_key_that_no_header_carries_is_refused_before_anything_starts(checkout: Any) -> None:
    ran = checkout.run("launch", "--stack", "laptop", SLIPWAY_API_KEY="a b")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("SLIPWAY_API_KEY: the key has characters that a header cannot carry")


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers everything with `status`."""

    status = 401

    def do_GET(self) -> None:
        self.send_error(self.status)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def answering(status: int, port: int = 0) -> Iterator[str]:
    """The URL of a server that answers everything with `status` while the block runs."""
    handler = type("Handler", (Answers,), {"status": status})
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_a_server_of_another_kind_is_no_reason_to_read_our_logs(checkout: Any) -> None:
    with answering(404) as url:
        ran = checkout.run("verify", "--endpoint", f"{url}/v1/chat/completions", "--model", "x", "--json")
    (gate,) = json.loads(ran.stdout)
    assert (ran.returncode, [check["id"] for check in gate["checks"]]) == (1, ["model-served"])
    assert f"no OpenAI-compatible server answers at {url} (/v1/models: HTTP 404: " in ran.stderr
    assert ran.stderr.endswith("; look at the server's log, mend the cause, verify again\n")


def test_the_advice_for_a_stack_that_does_not_serve_fits_how_it_runs(
    tmp_path: Path, copy_checkout: Any, free_port: Any
) -> None:
    """`launch` does not start containers, so no command may send the user there."""
    made = copy_checkout(tmp_path)
    port = free_port()
    for path, before, after in (
        ("stacks/Pulumi.s21-3090.yaml", "address: 192.0.2.30", "address: 127.0.0.1"),
        ("recipes/laguna-s-2.1.vllm.yaml", "port: 8080", f"port: {port}"),
    ):
        text = (tmp_path / path).read_text()
        assert before in text
        (tmp_path / path).write_text(text.replace(before, after))
    printed = "`invoke plan --stack s21-3090` prints"
    stack = ("--stack", "s21-3090")
    silent = made.run("status", *stack)
    assert (silent.returncode, "invoke launch" in silent.stderr) == (1, False)
    assert f"run on workstation what {printed}" in silent.stderr
    assert "read `docker logs s21-3090-server` on workstation" in silent.stderr
    assert f"run there what {printed}; then `invoke status` asks it" in made.run("launch", *stack).stderr
    assert "read `docker logs s21-3090-server` on workstation" in made.run("logs", *stack).stderr
    assert "`docker rm --force s21-3090-server` on workstation" in made.run("stop", *stack).stdout
    with answering(401, port):
        refused = made.run("status", *stack)
    assert refused.stderr.endswith("; set SLIPWAY_API_KEY to a key this server takes\n")
    assert (refused.returncode, "invoke plan" in refused.stderr) == (1, False)


HELP = (("--help", "build-image"), ("build-image", "--help"), ("build-image", "-h", "--engine", "vllm"))


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_is_asked_for_before_or_after_the_command(checkout: Any, words: tuple[str, ...]) -> None:
    ran = checkout.run(*words)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "build-image [--options]" in ran.stdout
    assert "--oldest-docker" in ran.stdout


DEFAULTS = """
from tasks import ns
for name, task in ns.tasks.items():
    for argument in task.get_arguments():
        default = argument.default
        if default not in (None, False, "", []) and str(default) not in (argument.help or ""):
            print(name, argument.name, default)
"""


def test_help_says_each_default() -> None:
    ran = subprocess.run([sys.executable, "-c", DEFAULTS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == ""


def test_a_failure_under_json_is_one_document_too(checkout: Any) -> None:
    ran = checkout.run("plan", "--recipe", "nope", "--json")
    assert ran.returncode == 2
    assert json.loads(ran.stdout)["error"] == "UsageError"
    assert json.loads(ran.stdout)["exit_code"] == 2


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--stack", "laptop"),
        ("nosuch",),
        ("plan", "--nosuch"),
        ("bench", "--requests", "x"),
        ("launch", "--dry"),
        ("-R", "launch"),
    ],
)
def test_json_is_exactly_one_document_whatever_happens(checkout: Any, words: tuple[str, ...]) -> None:
    ran = checkout.run(*words, "--json")
    assert ran.returncode in {1, 2}
    assert isinstance(json.loads(ran.stdout), dict)


def test_a_full_or_closed_standard_output_is_no_traceback(checkout: Any) -> None:
    for redirect, code in (("> /dev/full", 6), (">&-", 0), ("2>&-", 0)):
        command = " ".join(shlex.quote(word) for word in checkout.command("recipes"))
        ran = subprocess.run(("sh", "-c", f"{command} {redirect}"), capture_output=True, text=True, check=False)
        assert (ran.returncode, "Traceback" in ran.stderr) == (code, False), ran.stderr


def test_a_character_that_the_terminal_lacks_is_escaped(checkout: Any) -> None:
    assert checkout.run("recipes", PYTHONIOENCODING="ascii").returncode == 0


def test_recipes_answers_the_contract(checkout: Any) -> None:
    ran = checkout.run("recipes", "--check", "--json")
    rows = json.loads(ran.stdout)
    keys = {"id", "model", "engine", "engine_version", "hardware", "quantization", "strategy", "topology", "verified"}
    assert all(row.keys() == keys for row in rows)
    assert {row["hardware"] for row in json.loads(checkout.run("recipes", "--hardware", "H200", "--json").stdout)} == {
        "h200"
    }
    assert "not run" in checkout.run("recipes").stdout


def test_plan_answers_the_contract_and_warns_on_stderr(checkout: Any) -> None:
    words = ("plan", "--recipe", "laguna-s-2.1.vllm/4x3090-int4-champion")
    words += ("--inventory", "stacks/inventory/example-4x3090.yaml")
    plan = json.loads(checkout.run(*words, "--json").stdout)
    assert {"schema", "recipe", "deployment_digest", "fit", "warnings", "processes"} <= plan.keys()
    process = {"name", "role", "node", "image", "argv", "env", "mounts", "devices", "ports", "ulimits", "after"}
    assert process <= plan["processes"][0].keys()
    assert {"rule", "message", "source"} == plan["warnings"][0].keys()
    text = checkout.run(*words)
    golden = ROOT / "tests" / "data" / "plans" / "laguna-s-2.1.vllm-4x3090-int4-champion.sh"
    assert text.stdout == golden.read_text()
    assert "warning [checkpoint-unlocked]: " in text.stderr
    assert "# memory of server: per GPU 20.50 GiB for the engine" in text.stdout


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_plan_for_hosts_that_nobody_named_says_so(checkout: Any, words: tuple[str, ...]) -> None:
    made_up = checkout.run("plan", "--recipe", "laguna-m.1.sglang/h200-bf16", *words)
    said = [line for line in made_up.stderr.splitlines() if "--inventory" in line]
    assert len(said) == 1
    assert said[0].startswith("no --inventory was given, so the hosts and addresses are made up (http://192.0.2.11:")
    hosts = (
        "--recipe",
        "laguna-s-2.1.vllm/4x3090-int4-champion",
        "--inventory",
        "stacks/inventory/example-4x3090.yaml",
    )
    assert "made up" not in checkout.run("plan", *hosts, *words).stderr


def test_a_document_with_six_mistakes_reports_six_places(checkout: Any, tmp_path: Path) -> None:
    lines = ["schema: slipway/inventory/v1", "nmae: x", "runtime: dokcer", "nodes:", "  - name: a", "    address: 017"]
    lines += ["    gpus: [{model: rtx-3090, memory_gib: yes}]", "    fabric: ether"]
    path = tmp_path / "hosts.yaml"
    path.write_text("\n".join(lines))
    ran = checkout.run("plan", "--recipe", "laguna-m.1.sglang/h200-bf16", "--inventory", str(path))
    assert ran.returncode == 2
    places = [line.partition(" ")[0] for line in ran.stderr.splitlines() if line.startswith(str(path))]
    assert len(places) == 6
    assert "6 problems" in ran.stderr
    assert "did you mean name?" in ran.stderr
    assert "did you mean docker?" in ran.stderr


EARLY = (("plan", "--recipe", "laguna-m.1.sglang/h200-bf16", "--json"), ("--list",), ("--help", "build-image"))


@pytest.mark.parametrize("words", EARLY, ids=" ".join)
def test_the_reader_of_a_pipe_may_stop_early(checkout: Any, words: tuple[str, ...]) -> None:
    command = checkout.command(*words)
    reading = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=checkout.root)
    assert reading.stdout is not None
    assert reading.stderr is not None
    reading.stdout.close()
    stderr = reading.stderr.read().decode()
    reading.stderr.close()
    assert reading.wait() == 0
    assert "Traceback" not in stderr
    assert "BrokenPipe" not in stderr


def test_listing_the_commands_is_quick_and_complete(checkout: Any) -> None:
    begin = os.times()
    ran = checkout.run("--list")
    spent = os.times()
    cpu_s = spent.children_user + spent.children_system - begin.children_user - begin.children_system
    for name in ("demo", "plan", "recipes", "fetch-models", "lock-models", "verify-models", "launch", "stop", "bench"):
        assert f"  {name}" in ran.stdout
    # Heavy libraries take half a second and more; a listing that loads none stays well below.
    assert cpu_s < 1.0


def test_selecting_a_stack_lasts(checkout: Any) -> None:
    assert checkout.run("select", "--stack", "laptop").stdout == "selected laptop\n"
    plan = json.loads(checkout.run("plan", "--json").stdout)
    assert plan["recipe"] == "laguna-tiny.reference/laptop"
    assert checkout.run("inventory").stdout.startswith("the inventory is in ")
    assert checkout.run("select").stdout == "meant now: laptop\n"
    (checkout.root / ".slipway" / "stack").unlink()
    assert json.loads(checkout.run("plan", "--json", SLIPWAY_STACK="laptop").stdout) == plan


def test_two_checkouts_name_the_same_deployment(checkout: Any, tmp_path: Path, copy_checkout: Any) -> None:
    """Nothing of the machine or the folder reaches the plan, so evidence from one laptop means the same on another."""
    other = copy_checkout(tmp_path)
    plans = [json.loads(place.run("plan", "--stack", "laptop", "--json").stdout) for place in (checkout, other)]
    assert plans[0] == plans[1]
    assert str(checkout.root) not in json.dumps(plans[0])


@pytest.mark.parametrize("name", ["cosign.key", "keys/release.key"])
def test_a_private_key_in_the_checkout_is_not_committed_by_mistake(name: str, tmp_path: Path) -> None:
    subprocess.run(("git", "init", "--quiet", str(tmp_path)), check=True)
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text())
    asked = ("git", "-C", str(tmp_path), "check-ignore", name)
    assert subprocess.run(asked, capture_output=True, text=True, check=False).stdout == f"{name}\n"
