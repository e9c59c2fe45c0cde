"""Why a call to AWS failed before or instead of an answer, as the user's error: settings, credentials, or the network."""

from __future__ import annotations

import json
import re

from botocore import exceptions as aws
from botocore.parsers import ResponseParserError

from slipway.errors import AuthFailure, NetworkFailure, SlipwayError, UsageError
from slipway.provision import failures

RAISED = (aws.BotoCoreError, aws.ClientError, ResponseParserError, ValueError, OSError, LookupError, TypeError)
"""What boto3 raises on the way to an answer: its own errors, and plain ones where settings or answers are not as it expects."""

LOGIN = (
    aws.PartialCredentialsError,
    aws.CredentialRetrievalError,
    aws.SSOError,
    aws.TokenRetrievalError,
    aws.NoAuthTokenError,
    aws.InvalidConfigError,
    aws.UnknownCredentialError,
    aws.InfiniteLoopConfigError,
    aws.RefreshWithMFAUnsupportedError,
    aws.MetadataRetrievalError,
    # Those of a credential_process or token file: it is missing, or it prints something else than JSON.
    json.JSONDecodeError,
    OSError,
)


def code(error: aws.ClientError) -> str:
    """The code that AWS gave its refusal; empty where the answer holds none, as a proxy's page does."""
    said = str(error.response.get("Error", {}).get("Code", ""))
    return "" if re.fullmatch(r"\d*|Unknown", said) else said


def explain(error: Exception) -> SlipwayError:
    """The user's error for `error`, one of `RAISED`."""
    said = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, aws.ClientError):
        return _refused(error, said)
    if isinstance(error, aws.NoCredentialsError):
        return failures.explain("AWS", [f"Unable to locate credentials ({said})"], "asking AWS")
    if isinstance(error, aws.NoRegionError):
        return AuthFailure("AWS", "no region", "", "set aws:region in the stack's file")
    if isinstance(error, aws.ProfileNotFound):
        return AuthFailure("AWS_PROFILE", said, "", "choose one of `aws configure list-profiles`, or log in again")
    if isinstance(error, aws.ConfigParseError):
        return UsageError("AWS_CONFIG_FILE", said, "AWS's own settings are read from it", "correct or unset it")
    if isinstance(error, LOGIN):
        remedy = (
            "log in again (`aws sso login`) or mend the profile that AWS_PROFILE names, then run the same command again"
        )
        return AuthFailure("AWS", f"the credentials cannot be used ({said})", "nothing was changed", remedy)
    if isinstance(error, ValueError) and not isinstance(error, aws.BotoCoreError | ResponseParserError):
        why = "an address as https://host:port is needed"
        return UsageError("AWS_ENDPOINT_URL", f"cannot be used ({said})", why, "correct or unset it")
    if isinstance(error, LookupError | TypeError):
        return _no_answer_of_aws(f"misses {said}")
    remedy = "check the network and AWS_ENDPOINT_URL, then run the same command again"
    return NetworkFailure("AWS", f"did not answer ({said})", "nothing was changed by this call", remedy)


def _refused(error: aws.ClientError, said: str) -> SlipwayError:
    if not code(error):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return _no_answer_of_aws(f"HTTP {status}" if status else said)
    text = f"api error {code(error)}: {error.response['Error'].get('Message', '')}"
    return failures.explain(f"AWS {error.operation_name}", [text], error.operation_name)


def _no_answer_of_aws(said: str) -> NetworkFailure:
    why = "a proxy or a network's log-in page may stand in between"
    remedy = "check the network and AWS_ENDPOINT_URL, then run the same command again"
    return NetworkFailure("AWS", f"the answer is not one of AWS ({said})", why, remedy)
