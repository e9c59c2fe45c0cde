"""The locked inputs as a BuildKit source policy: the builder itself refuses whatever the lock does not name.

The policy goes to `docker buildx build` by the variable EXPERIMENTAL_BUILDKIT_SOURCE_POLICY, which holds a file's path.
How BuildKit reads it, and what follows for this module:

- Within one policy the last ALLOW or DENY that matches decides, so the refusal stands first and the exceptions follow.
- Selectors match as wildcards unless told otherwise; `*` stands for anything, slashes too. No other kind is used here, so
  the key that names the kind, whose spelling differs between readers, never appears.
- Compiled selectors are kept by identifier alone, constraints left out: of two rules with one identifier the second would be
  judged by the constraints of the first. Hence one rule per identifier.
- A context piped to stdin is an HTTP source on the host `buildkit-session`, served by the client; a folder is `local://`.
- A git source is `git://host/path#commit` whatever the protocol.

Source: moby/buildkit, sourcepolicy/engine.go, matcher.go, util/wildcard and client/llb/source.go, read 2026-12-01; every kind of
rule here tried with Docker 26.1.5 and buildx 0.13.1, 2026-12-01. buildah's own reader of such files is another: there the first
match wins, so this policy would deny everything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from slipway.errors import UsageError
from slipway.images.allowed import AllowedInputs

SESSION_SOURCES = ("local://*", "http://buildkit-session/*")
"""What the client itself sends: folders and the context on stdin. Neither reaches a network."""


def policy(allowed: AllowedInputs) -> dict[str, Any]:
    """The source policy as plain JSON values: everything denied, then each locked input allowed, in a fixed order.

    An image is allowed with and without a tag beside its digest, and from a local OCI layout, by digest. A download is
    allowed only where the Dockerfile states the locked checksum. A git commit is allowed with and without a subfolder.

    Raises: UsageError when one URL is locked with two checksums.
    """
    rules = [_rule("DENY", "*"), *(_rule("ALLOW", source) for source in SESSION_SOURCES)]
    for image in sorted(allowed.image_names()):
        name, _, digest = image.partition("@")
        rules += [_rule("ALLOW", f"docker-image://{image}"), _rule("ALLOW", f"docker-image://{name}:*@{digest}")]
    digests = sorted({image.partition("@")[2] for image in allowed.image_names()})
    rules += [_rule("ALLOW", f"oci-layout://*@{digest}") for digest in digests]
    for url, sha256 in sorted(_downloads(allowed).items()):
        rules.append(_rule("ALLOW", url, {"http.checksum": f"sha256:{sha256}"}))
    rules += [_rule("ALLOW", identifier) for identifier in sorted(set(_commits(allowed)))]
    return {"version": 1, "rules": rules}


def as_text(allowed: AllowedInputs) -> str:
    """The policy as the text of its file: two spaces of indentation, a newline at the end."""
    return json.dumps(policy(allowed), indent=2) + "\n"


def _rule(action: str, identifier: str, attributes: dict[str, str] | None = None) -> dict[str, Any]:
    selector: dict[str, Any] = {"identifier": identifier}
    if attributes:
        selector["constraints"] = [
            {"key": key, "value": value, "condition": "EQUAL"} for key, value in sorted(attributes.items())
        ]
    return {"action": action, "selector": selector}


def _downloads(allowed: AllowedInputs) -> dict[str, str]:
    found: dict[str, str] = {}
    for download in allowed.downloads:
        if found.setdefault(download.url, download.sha256) != download.sha256:
            raise UsageError(
                download.url, "locked with two checksums", "one URL has one content", "lock the image again"
            )
    return found


def _commits(allowed: AllowedInputs) -> Iterator[str]:
    for git in allowed.commits:
        parts = urlsplit(git.url)
        host = parts.netloc.rpartition("@")[2]
        identifier = f"git://{host}/{parts.path.strip('/')}#{git.commit}"
        yield identifier
        yield f"{identifier}:*"
