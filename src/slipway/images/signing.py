"""Signatures by cosign with a key of one's own, over an image's digest or over a lock file; nothing goes to a public log.

cosign runs as a program: SLIPWAY_COSIGN names it, else it is looked for on PATH. The key's password travels by environment only.
Source: cosign 2.5.0 and 3.1.1 run against docker-registry 2.8.2, 2026-12-01. 3.1.1 verifies what 2.5.0 signed, not the reverse.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway.errors import (
    AuthFailure,
    CheckFailed,
    IntegrityMismatch,
    MissingFile,
    NetworkFailure,
    SlipwayError,
    UsageError,
    from_os_error,
)
from slipway.images.image_name import ImageName, is_loopback

_RUN_S = 180
_OTHER_COSIGN = "what cosign 3 signed, cosign 2 does not find: use the newer of the two"
_KEY_BYTES = 65_536
_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,60})-----")
_PRIVATE = frozenset({"encrypted sigstore private key", "encrypted cosign private key"})
_PUBLIC = frozenset({"public key", "rsa public key"})
"""What PEM blocks may be. Source: cosign 2.5.0 and 3.1.1 take these and refuse others as `unsupported pem type`."""

_ANNOTATION = re.compile(r"[A-Za-z0-9._/-]+=[^,=\x00-\x1f]+")


@dataclass(frozen=True)
class Keys:
    """A key pair: the private key is encrypted with its password, the public one goes to who verifies."""

    private: Path
    public: Path


@dataclass(frozen=True)
class Verified:
    """A signature that holds: the digest that it is over, and the annotations that it carries."""

    digest: str
    annotations: Mapping[str, str]


class Cosign:
    """The cosign program, and which of its two dialects it speaks."""

    def __init__(self, program: Path) -> None:
        """Ask `program` what it understands. Raises: MissingFile, UsageError for a version that is too old."""
        self.program = program
        said = self._run(("sign", "--help"))
        text = said.stdout + said.stderr
        self._is_newer = "--use-signing-config" in text
        if said.returncode != 0 or not (self._is_newer or "--tlog-upload" in text):
            raise UsageError(
                program, "is no cosign that we know", "cosign 2.0 or newer signs here", "install a newer one"
            )

    def generate_keys(self, folder: Path, password: str, name: str = "cosign") -> Keys:
        """A new pair in `folder`: `<name>.key`, readable by its owner only, and `<name>.pub`; keys that are there stay.

        Raises: UsageError, MissingFile, DiskFailure, CheckFailed.
        """
        keys = Keys(folder / f"{name}.key", folder / f"{name}.pub")
        for path in (keys.private, keys.public):
            if path.exists():
                raise UsageError(
                    path, "is there already", "a key that has signed is not replaced", "choose another name"
                )
        if not folder.is_dir():
            raise MissingFile(folder, "no such folder", "", "make it first")
        argv = ("generate-key-pair", "--output-key-prefix", str(folder / name))
        self._checked(argv, str(folder), password)
        keys.private.chmod(0o600)
        return keys

    def sign(
        self, image: ImageName, key: Path, password: str | None = None, annotations: Mapping[str, str] | None = None
    ) -> None:
        """Nothing; the registry of `image` has a signature over its digest, with `annotations` under it.

        Without `password`, COSIGN_PASSWORD is used.

        Raises: UsageError, MissingFile, AuthFailure, NetworkFailure, CheckFailed.
        """
        argv = ("sign", "--yes", *_private(key), *self._no_log(), *_notes(annotations), *_plain(image))
        self._checked((*argv, _pinned(image)), str(image), _needed(password, key))

    def require_key(self, key: Path, password: str | None = None) -> None:
        """Nothing, once a throw-away file was signed with `key`: so cosign, key and password are right before anything is said.

        Raises: as `sign_blob`.
        """
        with tempfile.TemporaryDirectory(prefix="slipway-sign-") as folder:
            file = Path(folder) / "nothing"
            file.write_bytes(b"nothing\n")
            try:
                self.sign_blob(file, key, password)
            except SlipwayError as error:
                raise type(error)(key, error.problem, error.why, error.remedy) from None

    def verify(self, image: ImageName, public_key: Path, annotations: Mapping[str, str] | None = None) -> Verified:
        """The signature over the digest of `image` by `public_key`, with all of `annotations`.

        Raises: MissingFile where there is no signature, IntegrityMismatch for one of another key, digest or annotation,
        UsageError, AuthFailure, NetworkFailure.
        """
        argv = ("verify", *_public(public_key), "--insecure-ignore-tlog=true", "--output", "json")
        ran = self._checked((*argv, *_notes(annotations), *_plain(image), _pinned(image)), str(image))
        for payload in _payloads(ran.stdout):
            digest = _at(payload, "critical", "image", "docker-manifest-digest")
            if digest == image.digest:
                optional = _at(payload, "optional")
                notes = optional if isinstance(optional, dict) else {}
                return Verified(str(digest), {str(key): str(value) for key, value in notes.items()})
        why = "cosign accepts it, but for another image"
        raise IntegrityMismatch(image, "has no signature over this digest", why, "sign the image anew")

    def sign_blob(self, file: Path, key: Path, password: str | None = None) -> Path:
        """The bundle beside `file` (`<file>.sigstore.json`) that signs its bytes.

        Raises: UsageError, MissingFile, CheckFailed.
        """
        bundle = bundle_of(file)
        part = bundle.with_name(f".{bundle.name}.part")
        argv = ("sign-blob", "--yes", *_private(key), *self._no_log(), "--bundle", str(part), _there(file))
        try:
            self._checked(argv, str(file), _needed(password, key))
            part.replace(bundle)
        finally:
            part.unlink(missing_ok=True)
        return bundle

    def verify_blob(self, file: Path, public_key: Path, bundle: Path | None = None) -> None:
        """Nothing; the bytes of `file` are what the owner of `public_key` signed.

        Raises: MissingFile without a bundle, IntegrityMismatch.
        """
        bundle = bundle or bundle_of(file)
        if not bundle.is_file():
            raise MissingFile(bundle, "no such file", f"it holds the signature of {file}", "sign the file")
        argv = ("verify-blob", *_public(public_key), "--insecure-ignore-tlog=true", "--bundle", str(bundle))
        self._checked((*argv, _there(file)), str(file))

    def _no_log(self) -> tuple[str, ...]:
        """A private image's name is not for a public log; cosign 3 also wants to be told not to look for services."""
        return ("--tlog-upload=false", *(("--use-signing-config=false",) if self._is_newer else ()))

    def _checked(
        self, argv: tuple[str, ...], place: str, password: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        ran = self._run(argv, password)
        if ran.returncode != 0:
            raise _refusal(place, argv[0], ran)
        return ran

    def _run(self, argv: tuple[str, ...], password: str | None = None) -> subprocess.CompletedProcess[str]:
        env = dict(os.environ)
        env.pop("COSIGN_PASSWORD", None)
        if password is not None:
            env["COSIGN_PASSWORD"] = password
        try:
            return subprocess.run(
                (str(self.program), *argv),
                env=env,
                stdin=subprocess.DEVNULL,  # without a password it would ask, and wait for ever
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_RUN_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NetworkFailure(self.program, f"gave no answer in {_RUN_S} s", f"asked to {argv[0]}") from None
        except OSError as error:
            problem = f"cannot be run ({error.strerror})"
            raise MissingFile(self.program, problem, "cosign signs and verifies", "install it") from None


def find(environ: Mapping[str, str] | None = None) -> Cosign:
    """The cosign that SLIPWAY_COSIGN names, or the one on PATH.

    Raises: MissingFile, UsageError.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("SLIPWAY_COSIGN", "")
    found = named or shutil.which("cosign", path=environ.get("PATH", ""))
    if not found:
        raise MissingFile(
            "cosign", "is not installed", "it signs and verifies images", "install it, or set SLIPWAY_COSIGN"
        )
    return Cosign(Path(found))


def _private(key: Path) -> tuple[str, str]:
    refuse_no_private_key(key)
    return ("--key", str(key))


def _public(key: Path) -> tuple[str, str]:
    refuse_no_public_key(key)
    return ("--key", str(key))


def bundle_of(file: Path) -> Path:
    """Where the signature of `file` lies."""
    return file.with_name(f"{file.name}.sigstore.json")


def _pinned(image: ImageName) -> str:
    if image.digest is None:
        raise UsageError(image, "has no digest", "a tag may move between signing and pulling", "name the digest")
    return f"{image.place}@{image.digest}"


def _plain(image: ImageName) -> tuple[str, ...]:
    return ("--allow-http-registry",) if is_loopback(image.registry) else ()


def _notes(annotations: Mapping[str, str] | None) -> tuple[str, ...]:
    notes = [f"{name}={value}" for name, value in sorted((annotations or {}).items())]
    for note in notes:
        if not _ANNOTATION.fullmatch(note):
            raise UsageError(ascii(note)[1:-1], "is no annotation of a signature", "NAME=VALUE without comma and =")
    return tuple(word for note in notes for word in ("-a", note))


def _needed(password: str | None, key: Path) -> str:
    found = os.environ.get("COSIGN_PASSWORD") if password is None else password
    if found is None:
        raise UsageError(key, "needs its password", "it is read from the environment", "set COSIGN_PASSWORD")
    return found


def refuse_no_private_key(key: Path) -> None:
    """Nothing; `key` is a file with a private key of cosign's. Raises: MissingFile, DiskFailure, UsageError for another kind."""
    if not key.is_file():
        remedy = "make a pair with cosign generate-key-pair"
        raise MissingFile(key, "no such file", "a private key of cosign's is read here", remedy)
    kind = _kind_of(key)
    if kind not in _PRIVATE:
        why = "it signs with the encrypted key that it made"
        remedy = "give the .key file of the pair; cosign import-key-pair takes a key of another kind over"
        raise UsageError(key, f"is no private key of cosign's (got {kind})", why, remedy)


def refuse_no_public_key(key: Path) -> None:
    """Nothing; `key` is a file with a public key. Raises: MissingFile, DiskFailure, UsageError for another kind."""
    remedy = "get the public key of who signed (cosign.pub)"
    if not key.is_file():
        raise MissingFile(key, "no such file", "a signature is checked with the public key of who signed", remedy)
    kind = _kind_of(key)
    if kind not in _PUBLIC:
        why = "a signature is checked with the public key of who signed"
        raise UsageError(key, f"is no public key (got {kind})", why, remedy)


def _kind_of(key: Path) -> str:
    """What the PEM block in the file says that it is, or that there is none. Raises: DiskFailure."""
    try:
        with key.open("rb") as file:
            found = _PEM.search(file.read(_KEY_BYTES))
    except OSError as error:
        raise from_os_error(error, key, "reading the key") from error
    return found[1].decode("ascii").lower() if found else "no PEM block"


def _there(file: Path) -> str:
    if not file.is_file():
        raise MissingFile(file, "no such file", "its bytes are signed", "check the path")
    return str(file)


def _payloads(text: str) -> list[object]:
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return found if isinstance(found, list) else [found]


def _at(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


_MEANINGS: tuple[tuple[str, type[SlipwayError], str, str], ...] = (
    (
        r"no signatures found|no matching attestations: *$",
        MissingFile,
        _OTHER_COSIGN,
        "sign it, or mirror it with its signatures",
    ),
    (
        r"no matching (signatures|attestations)|invalid signature|failed to verify|could not verify|do not match",
        IntegrityMismatch,
        "signed with another key, over other bytes, or without a wanted annotation",
        "do not run it before you know why",
    ),
    (
        r"pem block|pem type|asn1: |illegal base64|parsing (public|private) key",
        UsageError,
        "the key file is damaged, or of a kind that cosign does not read",
        "give the file that cosign made",
    ),
    (r"decryption failed|decrypt", AuthFailure, "the key's password is another", "set COSIGN_PASSWORD"),
    (r"UNAUTHORIZED|DENIED|40[13] ", AuthFailure, "the registry refuses the login that docker keeps", "docker login"),
    (
        r"dial tcp|no such host|connection re|i/o timeout|tls:|x509:|tuf refresh",
        NetworkFailure,
        "the registry, or a service that only newer or keyless signatures need, was not reached",
        f"check the network; {_OTHER_COSIGN}",
    ),
    (r"MANIFEST_UNKNOWN|not found", MissingFile, "the registry does not know it", "push it first"),
)


def _refusal(place: str, act: str, ran: subprocess.CompletedProcess[str]) -> SlipwayError:
    """What cosign's last words mean, and the words themselves."""
    lines = [line for line in ran.stderr.splitlines() if line.startswith("Error:")] or ran.stderr.splitlines()[-3:]
    said = ascii(" ".join(lines).removeprefix("Error: "))[1:-1][-400:] or f"exit code {ran.returncode}"
    for pattern, kind, why, remedy in _MEANINGS:
        if re.search(pattern, said):
            return kind(place, f"cosign {act}: {said}", why, remedy)
    return CheckFailed(place, f"cosign {act}: {said}", f"exit code {ran.returncode}", "run it by hand to see more")
