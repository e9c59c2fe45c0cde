"""What an error of the network means, in the same words for every server that Slipway talks to."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass

_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})
"""OpenSSL's reasons for an answer that is no TLS at all; which one comes depends on its version and on the answer."""


@dataclass(frozen=True)
class Meaning:
    """What is wrong and what to do; `lasting` where another try would end the same way."""

    problem: str
    remedy: str
    lasting: bool = False


def meaning(error: BaseException, host: str = "") -> Meaning | None:
    """What `error` or what it came from says about the network, or None: nothing that has plainer words.

    `host` is who was asked, where the place of the message does not say it.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            problem = f"its certificate is not trusted ({cause.verify_message})"
            return Meaning(problem, "set SSL_CERT_FILE to a file with its CA", lasting=True)
        if isinstance(cause, ssl.SSLError) and cause.reason in _NOT_TLS:
            remedy = "name the port that speaks TLS, or give http:// where that is meant"
            return Meaning("does not speak TLS", remedy, lasting=True)
        if isinstance(cause, socket.gaierror):
            named = f": {host}" if host else ""
            said = (cause.strerror or "its name has no address").lower()
            return Meaning(f"no such host{named} ({said})", "check the name")
        if isinstance(cause, ConnectionRefusedError):
            at = f"at {host}" if host else "there"
            return Meaning(f"nobody listens {at}", "check host and port, and whether the server runs")
        if isinstance(cause, ConnectionResetError | BrokenPipeError):
            return Meaning("cut the connection", "look at the server's log, and at what stands before it")
        if isinstance(cause, OSError) and cause.strerror:
            at = f" at {host}" if host else ""
            remedy = "check the address, the network and any firewall"
            return Meaning(f"cannot be reached{at} ({cause.strerror.lower()})", remedy)
        cause = cause.__cause__ or cause.__context__
    return None
