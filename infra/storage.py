"""Where a cloud stack's models and images come from, since its hosts have no internet: a bucket and image repositories."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from slipway.cloud.policies import Tags
from slipway.cloud.settings import AwsHosts


@dataclass(frozen=True)
class StorageArgs:
    """What the storage is made from."""

    tags: Tags
    aws: AwsHosts


class Storage(pulumi.ComponentResource):
    """The model mirror (versioned, encrypted, private) and the image repositories (immutable tags)."""

    def __init__(self, args: StorageArgs) -> None:
        super().__init__("slipway:aws:Storage", "storage")
        child = pulumi.ResourceOptions(parent=self)
        # Mirroring a checkpoint again takes hours, so the bucket is kept like the hosts; a full one cannot be destroyed at all.
        kept = pulumi.ResourceOptions(parent=self, protect=args.aws.protect)
        self.bucket = aws.s3.Bucket("models", tags=args.tags("models"), opts=kept)
        aws.s3.BucketVersioning(
            "models",
            bucket=self.bucket.id,
            versioning_configuration=aws.s3.BucketVersioningVersioningConfigurationArgs(status="Enabled"),
            opts=child,
        )
        aws.s3.BucketServerSideEncryptionConfiguration(
            "models",
            bucket=self.bucket.id,
            rules=[
                aws.s3.BucketServerSideEncryptionConfigurationRuleArgs(
                    apply_server_side_encryption_by_default=aws.s3.BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultArgs(
                        sse_algorithm="AES256"
                    )
                )
            ],
            opts=child,
        )
        aws.s3.BucketPublicAccessBlock(
            "models",
            bucket=self.bucket.id,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=child,
        )
        self.repositories = [self._repository(args, name, child) for name in args.aws.repositories]
        self.register_outputs({"bucket": self.bucket.id})

    def _repository(self, args: StorageArgs, name: str, child: pulumi.ResourceOptions) -> aws.ecr.Repository:
        return aws.ecr.Repository(
            name,
            name=f"slipway/{args.tags.stack}/{name}",
            image_tag_mutability="IMMUTABLE",
            image_scanning_configuration=aws.ecr.RepositoryImageScanningConfigurationArgs(scan_on_push=True),
            encryption_configurations=[aws.ecr.RepositoryEncryptionConfigurationArgs(encryption_type="AES256")],
            tags=args.tags(name),
            opts=child,
        )
