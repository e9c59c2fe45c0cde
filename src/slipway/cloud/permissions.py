"""What the hosts of a cloud stack may do at AWS: read their mirror, pull their images, be reached through SSM. Nothing else."""

from __future__ import annotations

from typing import Any

from slipway.documents import canonical_json

VERSION = "2012-10-17"
ASSUME = canonical_json(
    {
        "Version": VERSION,
        "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
    }
).decode()
"""Only EC2 hosts take the role."""

SSM_ACTIONS = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
    "ec2messages:AcknowledgeMessage",
    "ec2messages:DeleteMessage",
    "ec2messages:FailMessage",
    "ec2messages:GetEndpoint",
    "ec2messages:GetMessages",
    "ec2messages:SendReply",
)
"""What the SSM agent needs for sessions, less the parameter store.

Source: the Systems Manager user guide on instance permissions, from memory; not run against AWS.
"""


def node_policy(bucket_arn: str, repository_arns: list[str]) -> str:
    """The policy of the hosts' role as JSON text: each statement names its own bucket or repositories where AWS has names."""
    statements: list[dict[str, Any]] = [
        _allow("MirrorList", ("s3:ListBucket", "s3:GetBucketLocation"), [bucket_arn]),
        _allow("MirrorRead", ("s3:GetObject", "s3:GetObjectVersion"), [f"{bucket_arn}/*"]),
        _allow("ImageLogin", ("ecr:GetAuthorizationToken",), ["*"]),
        _allow("Sessions", SSM_ACTIONS, ["*"]),
    ]
    if repository_arns:
        pull = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
        statements.append(_allow("ImagePull", pull, repository_arns))
    return canonical_json({"Version": VERSION, "Statement": statements}).decode()


def _allow(name: str, actions: tuple[str, ...], resources: list[str]) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": list(actions), "Resource": resources}
