"""What Pulumi, the backend or AWS said, as one line with the next step."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from slipway.errors import AuthFailure, CheckFailed, NetworkFailure, SlipwayError, UsageError


@dataclass(frozen=True)
class Known:
    """A failure that is known: `error` is raised with these words when `pattern` is found in what was said."""

    pattern: str
    error: type[SlipwayError]
    problem: str
    why: str
    remedy: str


class Locked(CheckFailed):
    """Another run holds the stack's lock; `said` is Pulumi's whole message, which names the holder."""

    said: str = ""


NO_CAPACITY = "nothing is running that was not before; what was created is kept and recorded"

AWS = (
    # Source: EC2 API reference, "Error codes for the Amazon EC2 API", 2026-11.
    Known(
        r"InvalidSubnet\.Conflict|InvalidVpc\.Range|InvalidSubnet\.Range",
        CheckFailed,
        "a zone or network that changed cannot replace the old one while that stands",
        "AWS keeps a subnet's zone and range for its life",
        "set the old value back, or run `invoke down` and then `invoke up`",
    ),
    Known(
        "InsufficientInstanceCapacity|InsufficientCapacity|InsufficientHostCapacity",
        CheckFailed,
        "AWS has no such hosts free in the zone",
        NO_CAPACITY,
        "reserve a capacity block and name it in slipway:aws.capacity, or choose another zone; then run the same command again",
    ),
    Known(
        "ReservationCapacityExceeded|InsufficientReservedInstanceCapacity",
        CheckFailed,
        "the capacity reservation has no place left",
        NO_CAPACITY,
        "stop what uses it (`invoke orphans` lists forgotten hosts) or lower slipway:aws.count; then run the same command again",
    ),
    Known(
        "InvalidCapacityReservationId",
        UsageError,
        "AWS knows no capacity reservation of this id in the region",
        "a capacity block is valid in its own zone and only between its start and its end",
        "correct slipway:aws.capacity.id; `aws ec2 describe-capacity-reservations` lists yours",
    ),
    Known(
        "VcpuLimitExceeded|InstanceLimitExceeded|MaxSpotInstanceCountExceeded",
        CheckFailed,
        "the account's vCPU quota is too small",
        "the quota counts vCPUs of all hosts of the family (P: 192 for each 8-GPU host)",
        "ask for more under Service Quotas, EC2, Running On-Demand P instances; then run the same command again",
    ),
    Known(
        "VpcLimitExceeded|AddressLimitExceeded|SecurityGroupLimitExceeded|RulesPerSecurityGroupLimitExceeded|LimitExceeded",
        CheckFailed,
        "an account quota is used up",
        "the message above names it",
        "remove what is not needed (`invoke orphans` lists what Slipway left) or ask for more under Service Quotas",
    ),
    Known(
        "PendingVerification|OptInRequired|Blocked",
        AuthFailure,
        "AWS has not opened the account or the region for this yet",
        "",
        "follow the mail or the console's notice, then run the same command again",
    ),
    Known(
        "InvalidAMIID",
        UsageError,
        "AWS knows no image of this id in the region",
        "ids differ between regions",
        "correct slipway:aws.ami",
    ),
    Known(
        "UnauthorizedOperation|AccessDenied|AccessDeniedException",
        AuthFailure,
        "AWS refuses the call to this identity",
        "",
        "add the permission that the message names; docs/provision.md has the whole policy",
    ),
    Known(
        "ExpiredToken|ExpiredTokenException|RequestExpired|TokenRefreshRequired",
        AuthFailure,
        "the AWS credentials have expired",
        "",
        "log in again (`aws sso login`), then run the same command again",
    ),
    Known(
        "InvalidClientTokenId|AuthFailure|SignatureDoesNotMatch|UnrecognizedClientException",
        AuthFailure,
        "AWS does not accept the credentials",
        "",
        "check AWS_PROFILE or the keys, and the clock of this machine",
    ),
    Known(
        "RequestLimitExceeded|Throttling|ThrottlingException|ServiceUnavailable",
        NetworkFailure,
        "AWS is throttling or unavailable",
        "",
        "wait a minute, then run the same command again; it goes on where it stopped",
    ),
    Known(
        "BucketNotEmpty",
        CheckFailed,
        "the model mirror still has objects",
        "a mirror takes hours to fill, so it is never emptied on the way",
        "empty it yourself (`aws s3 rm --recursive`; old versions too), then run the same command again",
    ),
    Known(
        "BucketAlreadyExists|RepositoryAlreadyExistsException|EntityAlreadyExists|InvalidPlacementGroup.Duplicate",
        CheckFailed,
        "the name is taken by something that this stack's state does not know",
        "",
        "`invoke orphans` tells whether it is this stack's; otherwise rename the stack or the thing",
    ),
    Known(
        "DependencyViolation|DeleteConflict|ResourceInUse",
        CheckFailed,
        "something still uses what is to be removed",
        "usually a thing that was made by hand in this network",
        "`invoke orphans` lists Slipway's own; remove the rest by hand, then run the same command again",
    ),
)

PULUMI = (
    # Source: messages of Pulumi 3.274, seen by running it (tests/provision).
    Known(
        "currently locked by|Another update is currently in progress",
        Locked,
        "another run holds the stack's lock",
        "two runs at a time would make hosts twice",
        "wait for it to end; if that run is gone, `pulumi cancel --stack NAME` frees the lock, then run the same command again",
    ),
    Known(
        "incorrect passphrase",
        AuthFailure,
        "wrong passphrase",
        "the stack's secrets were locked with another one",
        "set PULUMI_CONFIG_PASSPHRASE_FILE to the right file; for a new state, remove encryptionsalt from the stack's file",
    ),
    Known(
        "passphrase must be set|PULUMI_CONFIG_PASSPHRASE",
        AuthFailure,
        "no passphrase",
        "",
        "set PULUMI_CONFIG_PASSPHRASE_FILE, or leave it unset to let Slipway keep one under .slipway/pulumi/",
    ),
    Known(
        "PULUMI_ACCESS_TOKEN must be set|not logged in|\\[401\\] Unauthorized|invalid access token",
        AuthFailure,
        "not logged in to the Pulumi backend",
        "",
        "run `pulumi login`, or unset PULUMI_BACKEND_URL to keep the state under .slipway/pulumi/",
    ),
    Known(
        "unable to check if bucket .* is accessible|failed to list bucket|unable to open bucket|could not connect to backend"
        "|no such host|connection refused|dial tcp|problem logging in|blob \\(key|NoSuchBucket: The specified bucket does not exist",
        NetworkFailure,
        "the state backend cannot be reached",
        "",
        "check PULUMI_BACKEND_URL and the network; nothing was changed",
    ),
    Known(
        "no stack named|stack '.*' not found",
        UsageError,
        "the backend has no state of this stack",
        "",
        "`invoke up` makes it; `pulumi stack ls` shows what there is",
    ),
    Known(
        "No valid credential sources|unable to validate AWS credentials|NoCredentialProviders|Unable to locate credentials",
        AuthFailure,
        "no AWS credentials",
        "",
        "set AWS_PROFILE or log in (`aws sso login`), then run the same command again",
    ),
    Known(
        "is protected|cannot be deleted\\s+because it is protected",
        CheckFailed,
        "hosts and model mirror are protected against removal",
        "a stack is protected until its file says otherwise",
        "set `protect: false` under slipway:aws, run `invoke up`, then `invoke down`",
    ),
    Known(
        "no resource plugin|could not load plugin|failed to download plugin|could not find plugin",
        NetworkFailure,
        "Pulumi's AWS provider is not installed and could not be fetched",
        "",
        "run `pulumi plugin install resource aws` where the release archive can be reached",
    ),
    Known(
        "failed to load language plugin|language plugin .* not found|no language plugin",
        NetworkFailure,
        "Pulumi's Python language host is missing",
        "it comes with Pulumi's own release, beside the CLI",
        "install Pulumi in the ordinary way, so that pulumi-language-python stands on PATH",
    ),
)

_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*):[^\s/]*@", re.IGNORECASE)
_QUERY = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s?#'\"]*)\?[^\s'\"]+", re.IGNORECASE)

_CODE = re.compile(r"\b(?:api error|An error occurred \() ?([A-Za-z][A-Za-z0-9.]+)")


def explain(place: str, said: Iterable[str], doing: str) -> SlipwayError:
    """The user's error for a Pulumi run that failed; `said` are its diagnostics, the most telling first."""
    texts = [masked(" ".join(text.split())) for text in said if text.strip()]
    for text in texts:
        known = _known(text)
        if known:
            error = known.error(place, f"{known.problem} ({_shortened(text)})", known.why, known.remedy)
            if isinstance(error, Locked):
                error.said = text
            return error
    last = _shortened(texts[0]) if texts else "it said nothing"
    return CheckFailed(
        place, f"{doing} failed ({last})", "what was done is recorded", "correct it, then run the same command again"
    )


def masked(text: str) -> str:
    """`text` whose URLs show neither password nor query: both may hold what opens a backend."""
    return _QUERY.sub(r"\1?***", _PASSWORD.sub(r"\1:***@", text))


def _known(text: str) -> Known | None:
    code = _CODE.search(text)
    if code:
        for known in AWS:
            if re.match(rf"(?:{known.pattern})", code.group(1)):
                return known
    return next((known for known in PULUMI if re.search(known.pattern, text, re.IGNORECASE)), None)


def _shortened(text: str, limit: int = 300) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).removeprefix("error: ")
    code = _CODE.search(plain)
    if code and len(plain) > limit:
        plain = plain[code.start() :]
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"
