"""A mirror in S3, or in whatever speaks like it (AWS_ENDPOINT_URL names the server).

An object of up to 5 GB is sent in one PUT with the SHA-256 of all its bytes, which S3 compares with what it received. Larger
ones go in parts, each with its own SHA-256; S3 then keeps no digest of the whole, so it stands in the object's metadata and in
the manifest. Nothing that exists is replaced (`If-None-Match: *`), so two uploads at a time do no harm.

Source: botocore 1.44 service model and handlers; S3 API reference for PutObject, CompleteMultipartUpload; read 2026-11-30.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from slipway.checkpoints.gateway import Gone
from slipway.checkpoints.hub import masked, without_user_info
from slipway.checkpoints.lock import LockedFile
from slipway.checkpoints.mirror import FolderStore, Store, changed
from slipway.checkpoints.pins import digest_of
from slipway.errors import AuthFailure, MissingFile, NetworkFailure, SlipwayError, UsageError, from_os_error

SINGLE_PUT_BYTES = 5 * 1000**3
"""Largest object that goes in one PUT, as S3 allows."""

PART_BYTES = 64 << 20
"""Each worker holds one part in memory; 10,000 of them, as many as S3 allows, are 640 GB, more than any shard has."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_CONNECTIONS = 64


@dataclass(frozen=True)
class Sizes:
    """From which size on objects go in parts, and how large a part is."""

    single_put_bytes: int = SINGLE_PUT_BYTES
    part_bytes: int = PART_BYTES


def store_at(place: str) -> Store:
    """The mirror at `place`: `s3://bucket/prefix`, or a folder.

    Raises: UsageError.
    """
    if place[:5].lower() == "s3://":
        return S3Store(f"s3://{place[5:]}")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", place):
        raise UsageError(
            "--to or --from",
            f"is no mirror (got {without_user_info(place)})",
            "s3://bucket/prefix, or a folder (./x:/y where its name looks like an address)",
            "correct it",
        )
    return FolderStore(Path(place))


class S3Store:
    """Objects below `s3://bucket/prefix`, with the credentials and region that boto3 finds.

    Raises: UsageError for an address that S3 cannot have.
    """

    def __init__(self, place: str, sizes: Sizes | None = None) -> None:
        self.place = place.rstrip("/")
        self._bucket, _, prefix = self.place.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._sizes = sizes or Sizes()
        if not _BUCKET.fullmatch(self._bucket) or not prefix.isprintable():
            raise UsageError(place, "is no place in S3", "s3://bucket/prefix", "correct it")
        config = Config(
            retries={"mode": "standard", "max_attempts": 5},
            max_pool_connections=_CONNECTIONS,
            connect_timeout=15,
            read_timeout=60,
            # Our digests stand in the requests; another checksum would only cost time.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            self._client: Any = boto3.session.Session().client("s3", config=config)
        except (BotoCoreError, ValueError) as error:
            remedy = "set AWS_REGION and AWS_ENDPOINT_URL, or ~/.aws/config"
            raise UsageError(self.place, f"S3 cannot be asked ({masked(str(error))})", "", remedy) from error

    def size(self, name: str) -> int | None:
        try:
            return int(self._client.head_object(Bucket=self._bucket, Key=self._prefix + name)["ContentLength"])
        except (ClientError, BotoCoreError) as error:
            if _code(error) in {"404", "NoSuchKey", "NotFound"}:
                return None
            raise self._error(error, name) from error

    def put(self, name: str, source: Path, file: LockedFile) -> bool:
        try:
            if file.size_bytes <= self._sizes.single_put_bytes:
                return self._put_whole(name, source, file)
            return self._put_in_parts(name, source, file)
        except (ClientError, BotoCoreError) as error:
            if _code(error) in {"PreconditionFailed", "412", "ConditionalRequestConflict"}:
                return False
            if _code(error) in {"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch"}:
                raise changed(source, file, f"other bytes on the way ({_code(error)})") from error
            raise self._error(error, name) from error
        except OSError as error:
            raise from_os_error(error, source, "reading the file to mirror") from error

    def put_text(self, name: str, data: bytes) -> None:
        try:
            self._client.put_object(
                Bucket=self._bucket, Key=self._prefix + name, Body=data, ContentType="application/json"
            )
        except (ClientError, BotoCoreError) as error:
            raise self._error(error, name) from error

    def get_text(self, name: str) -> bytes | None:
        try:
            with self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"] as body:
                return bytes(body.read())
        except (ClientError, BotoCoreError) as error:
            if _code(error) in {"404", "NoSuchKey", "NotFound"}:
                return None
            raise self._error(error, name) from error

    @contextmanager
    def open(self, name: str, start: int) -> Iterator[IO[bytes]]:
        ranged = {"Range": f"bytes={start}-"} if start else {}
        try:
            with self._client.get_object(Bucket=self._bucket, Key=self._prefix + name, **ranged)["Body"] as body:
                yield body
        except (ClientError, BotoCoreError) as error:
            raise Gone(str(error)) from error

    def _put_whole(self, name: str, source: Path, file: LockedFile) -> bool:
        checksum = {"ChecksumSHA256": _base64(file.sha256)} if file.sha256 else {}
        with source.open("rb") as stream:
            self._client.put_object(
                Bucket=self._bucket,
                Key=self._prefix + name,
                Body=stream,
                ContentLength=file.size_bytes,
                IfNoneMatch="*",
                Metadata={"digest": digest_of(file)},
                **checksum,
            )
        return True

    def _put_in_parts(self, name: str, source: Path, file: LockedFile) -> bool:
        key = {"Bucket": self._bucket, "Key": self._prefix + name}
        began = self._client.create_multipart_upload(
            **key, ChecksumAlgorithm="SHA256", Metadata={"digest": digest_of(file)}
        )
        upload = {**key, "UploadId": began["UploadId"]}
        try:
            parts: list[dict[str, Any]] = []
            with source.open("rb") as stream:
                while piece := stream.read(self._sizes.part_bytes):
                    checksum = _base64(hashlib.sha256(piece).hexdigest())
                    number = len(parts) + 1
                    sent = self._client.upload_part(**upload, PartNumber=number, Body=piece, ChecksumSHA256=checksum)
                    parts.append({"PartNumber": number, "ETag": sent["ETag"], "ChecksumSHA256": checksum})
            self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, IfNoneMatch="*")
        except BaseException:
            self._abort(upload)
            raise
        return True

    def _abort(self, upload: dict[str, str]) -> None:
        """Nothing; parts that nobody will complete cost money until they are removed."""
        try:
            self._client.abort_multipart_upload(**upload)
        except (ClientError, BotoCoreError):
            return  # the first error is the one to tell; a lifecycle rule of the bucket removes the parts

    def _error(self, error: Exception, name: str) -> SlipwayError:
        code, place = _code(error), f"{self.place}/{name}"
        if isinstance(error, NoCredentialsError | PartialCredentialsError) or code in _REFUSED:
            remedy = "set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and check the bucket's policy"
            return AuthFailure(place, f"S3 refuses access ({code or error})", "", remedy)
        if code == "NoSuchBucket":
            return MissingFile(f"s3://{self._bucket}", "no such bucket", "", "create it, or correct its name")
        said = masked(" ".join(str(error).split()))[:300]
        return NetworkFailure(
            place, f"S3 does not answer as it must ({said})", "", "check the network and AWS_ENDPOINT_URL"
        )


_REFUSED = {
    "401",
    "403",
    "AccessDenied",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
}


def _code(error: Exception) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def _base64(digest: str | None) -> str:
    return base64.b64encode(bytes.fromhex(digest or "")).decode("ascii")
