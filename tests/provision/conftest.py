"""The real Pulumi CLI on this checkout's own program, with a whole AWS account on loopback."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.exceptions import ClientError

ROOT = Path(__file__).resolve().parent.parent.parent
STANDINS = ROOT / "tests" / "standins"
REGION = "us-east-2"
COPIED = ("tasks", "Pulumi.yaml", "infra", "recipes", "stacks", "checkpoints", "images")


class AwsAccount:
    """moto's server with one account; `things` is everything in it that Slipway could have made."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = boto3.Session(aws_access_key_id="test", aws_secret_access_key="test", region_name=REGION)
        self._empty: set[str] | None = None

    def client(self, service: str) -> Any:
        return self.session.client(service, endpoint_url=self.url)

    def reset(self) -> None:
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")).close()
        self._empty = None
        self._empty = self._all()

    def things(self) -> set[str]:
        """What is in the account now and was not when it was new, as `kind id`; hosts that are terminated do not count."""
        assert self._empty is not None
        return self._all() - self._empty

    def _all(self) -> set[str]:
        ec2, iam = self.client("ec2"), self.client("iam")
        found: set[str] = set()
        for kind, call, key, identity in (
            ("vpc", ec2.describe_vpcs, "Vpcs", "VpcId"),
            ("subnet", ec2.describe_subnets, "Subnets", "SubnetId"),
            ("route-table", ec2.describe_route_tables, "RouteTables", "RouteTableId"),
            ("security-group", ec2.describe_security_groups, "SecurityGroups", "GroupId"),
            ("rule", ec2.describe_security_group_rules, "SecurityGroupRules", "SecurityGroupRuleId"),
            ("placement-group", ec2.describe_placement_groups, "PlacementGroups", "GroupName"),
            ("launch-template", ec2.describe_launch_templates, "LaunchTemplates", "LaunchTemplateId"),
            ("role", iam.list_roles, "Roles", "RoleName"),
            ("instance-profile", iam.list_instance_profiles, "InstanceProfiles", "InstanceProfileName"),
            ("bucket", self.client("s3").list_buckets, "Buckets", "Name"),
            ("repository", self.client("ecr").describe_repositories, "repositories", "repositoryName"),
        ):
            found |= {f"{kind} {one[identity]}" for one in call()[key]}
        # Volumes and network interfaces are not counted: moto leaves those of a host or an endpoint behind when it goes.
        endpoints = ec2.describe_vpc_endpoints()["VpcEndpoints"]
        found |= {f"vpc-endpoint {one['VpcEndpointId']}" for one in endpoints if one["State"] != "deleted"}
        for table in ec2.describe_route_tables()["RouteTables"]:
            found |= {
                f"association {link['RouteTableAssociationId']}"
                for link in table.get("Associations", [])
                if not link.get("Main")
            }
        found |= {f"instance {one['InstanceId']}" for one in self.instances()}
        return found | self._second_steps()

    def _second_steps(self) -> set[str]:
        """What is done in a second call after a creation, so that a run can die before it."""
        ec2, iam, s3 = (self.client(service) for service in ("ec2", "iam", "s3"))
        found: set[str] = set()
        for vpc in ec2.describe_vpcs()["Vpcs"]:
            said = ec2.describe_vpc_attribute(VpcId=vpc["VpcId"], Attribute="enableDnsHostnames")
            if said["EnableDnsHostnames"]["Value"]:
                found.add(f"dns-names {vpc['VpcId']}")
        for profile in iam.list_instance_profiles()["InstanceProfiles"]:
            found |= {f"profile-role {role['RoleName']}" for role in profile["Roles"]}
        for role in iam.list_roles()["Roles"]:
            found |= {f"policy {name}" for name in iam.list_role_policies(RoleName=role["RoleName"])["PolicyNames"]}
        for bucket in s3.list_buckets()["Buckets"]:
            name = bucket["Name"]
            found.add(f"versioning {name} {s3.get_bucket_versioning(Bucket=name).get('Status')}")
            with suppress(ClientError):  # untagged
                found.add(f"bucket-tags {len(s3.get_bucket_tagging(Bucket=name)['TagSet'])}")
        return found

    def instances(self) -> list[dict[str, Any]]:
        """The hosts that are not terminated."""
        reservations = self.client("ec2").describe_instances()["Reservations"]
        return [one for r in reservations for one in r["Instances"] if one["State"]["Name"] != "terminated"]

    def kinds(self) -> dict[str, int]:
        """How many things of each kind there are."""
        counts: dict[str, int] = {}
        for thing in self.things():
            kind = thing.partition(" ")[0]
            counts[kind] = counts.get(kind, 0) + 1
        return counts


class Project:
    """A copy of the checkout's program and data, with the environment that its commands get."""

    def __init__(self, root: Path, home: Path, account: AwsAccount) -> None:
        self.root, self.account = root, account
        for name in COPIED:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, root / name)
        for file in (root / "stacks").glob("Pulumi.*.yaml"):
            kept = [line for line in file.read_text().splitlines() if not line.startswith("encryptionsalt:")]
            file.write_text("\n".join(kept) + "\n")  # without what somebody who has used the checkout left
        (root / "src").symlink_to(ROOT / "src")
        # The program runs in the tests' own virtual environment, as it would in the checkout's .venv.
        (root / ".venv").symlink_to(sys.prefix)
        self.calls = root / "provider-calls"
        self.env = {
            "PATH": f"{STANDINS}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "PULUMI_HOME": str(home),
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "AWS_ENDPOINT_URL": account.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
            "SLIPWAY_STANDIN_CALLS": str(self.calls),
        }

    def set(self, stack: str, **values: Any) -> None:
        """Write values below slipway:aws of a stack's file, as a user does."""
        with self.edited(stack) as config:
            config["slipway:aws"].update(values)

    def write_own_addresses(self, stack: str) -> None:
        """Write addresses that are no examples into a stack of hosts that are there already."""
        with self.edited(stack) as config:
            for number, node in enumerate(config["slipway:nodes"], start=2):
                node["address"] = f"10.0.0.{number}"

    @contextmanager
    def edited(self, stack: str) -> Iterator[dict[str, Any]]:
        """The `config` of a stack's file, to be changed in the block."""
        path = self.root / "stacks" / f"Pulumi.{stack}.yaml"
        said = yaml.safe_load(path.read_text())
        yield said["config"]
        path.write_text(yaml.safe_dump(said, sort_keys=False))

    def invoke(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """One of our commands, as a user calls it; never with a traceback."""
        ran = self._run([sys.executable, "-m", "invoke", "--search-root", str(self.root), *words], env)
        assert "Traceback" not in ran.stderr, ran.stderr
        assert "unexpected error" not in ran.stderr, ran.stderr
        return ran

    def pulumi(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """The plain CLI on the state that our commands keep."""
        state = self.root / ".slipway" / "pulumi"
        own = {"PULUMI_BACKEND_URL": f"file://{state}", "PULUMI_CONFIG_PASSPHRASE_FILE": str(state / "passphrase")}
        return self._run(["pulumi", *words, "--non-interactive"], {**own, **env})

    def provider_calls(self) -> int:
        """How many creations, updates and deletions the provider was asked for so far."""
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0

    def _run(self, words: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=self.root,
            env={**os.environ, **self.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="session")
def cli() -> str:
    """The Pulumi CLI, or a skip with the way to get it."""
    found = shutil.which("pulumi")
    if found is None or shutil.which("pulumi-language-python-exec") is None:
        pytest.skip("no Pulumi CLI with its Python runner on PATH; PATH=$(tools/pulumi/build):$PATH")
    return found


@contextmanager
def served() -> Iterator[AwsAccount]:
    """An account's server, for as long as the block runs."""
    env = {**os.environ, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": REGION}
    words = [sys.executable, str(STANDINS / "aws-account")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url, "the account's server did not start"
    yield AwsAccount(url)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def made_project(folder: Path, account: AwsAccount) -> Project:
    """A project in `folder` whose stack m1-pd has the values that only a user can know."""
    root = folder / "checkout"
    root.mkdir()
    made = Project(root, folder / "pulumi-home", account)
    made.set(
        "m1-pd",
        ami="ami-0123456789abcdef0",
        capacity={"kind": "block", "id": "cr-0123456789abcdef0"},
        protect=False,
    )
    return made


@pytest.fixture(scope="session")
def aws_server() -> Iterator[AwsAccount]:
    """The account's server, one for all tests."""
    with served() as account:
        yield account


@pytest.fixture
def account(aws_server: AwsAccount) -> AwsAccount:
    """An empty account."""
    aws_server.reset()
    return aws_server


@pytest.fixture
def project(cli: str, account: AwsAccount, tmp_path: Path) -> Project:
    """A project on the real CLI and an empty account."""
    return made_project(tmp_path, account)


@pytest.fixture
def bare_project(tmp_path: Path) -> Project:
    """A project of which nothing is asked that needs Pulumi or an account."""
    return made_project(tmp_path, AwsAccount("http://127.0.0.1:9"))


@dataclass(frozen=True)
class Sshd:
    """A real sshd on loopback that lets in one key; `ssh` is a folder whose `ssh` knows it under every host name."""

    folder: Path
    port: int
    ssh: Path

    def start(self) -> subprocess.Popen[str]:
        """The server, once it listens."""
        Path("/run/sshd").mkdir(exist_ok=True)
        words = [str(_program("sshd")), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        first = process.stderr.readline()
        assert "listening" in first, first
        return process

    def write_host_key(self) -> None:
        """A new key of the host, as after a reinstallation."""
        _make_key(self.folder / "host")


@pytest.fixture
def sshd(tmp_path: Path, unused_port: int) -> Iterator[Sshd]:
    """The server, running until the test ends."""
    if not (_program("sshd") and _program("ssh-keygen") and _program("ssh")):
        pytest.skip("OpenSSH's server is not installed")
    if os.geteuid() != 0:
        pytest.skip("sshd runs as root")
    folder = tmp_path / "sshd"
    made = Sshd(folder, unused_port, folder / "bin")
    made.ssh.mkdir(parents=True)
    made.write_host_key()
    _make_key(folder / "user")
    settings = {
        "Port": unused_port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "user.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
    }
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    # What a user has in ~/.ssh/config; ssh itself looks there by the user's entry, not by HOME.
    (folder / "config").write_text(
        f"Host *\n  HostName 127.0.0.1\n  Port {unused_port}\n  User {getpass.getuser()}\n  IdentityFile {folder}/user\n"
        f"  UserKnownHostsFile {folder}/known\n  GlobalKnownHostsFile none\n  StrictHostKeyChecking accept-new\n"
    )
    (made.ssh / "ssh").write_text(f'#!/bin/sh\nexec {_program("ssh")} -F {folder}/config "$@"\n')
    (made.ssh / "ssh").chmod(0o755)
    process = made.start()
    try:
        yield made
    finally:
        process.terminate()
        process.wait(10)
        assert process.stderr is not None
        process.stderr.close()


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


def _make_key(path: Path) -> None:
    path.unlink(missing_ok=True)
    subprocess.run([str(_program("ssh-keygen")), "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
