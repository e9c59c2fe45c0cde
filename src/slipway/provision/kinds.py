"""How each resource type of the program is found again in AWS, as data.

`slipway:stack` and `slipway:resource` stand on everything that AWS can tag, from the call that creates it.
"""

from __future__ import annotations

from dataclasses import dataclass

STACK_TAG = "slipway:stack"
NAME_TAG = "slipway:resource"
OWNER_TAG = "slipway:owner"

EC2 = {
    # EC2's own word for a kind (DescribeTags) -> Pulumi's type
    "vpc": "aws:ec2/vpc:Vpc",
    "subnet": "aws:ec2/subnet:Subnet",
    "route-table": "aws:ec2/routeTable:RouteTable",
    "security-group": "aws:ec2/securityGroup:SecurityGroup",
    "security-group-rule": "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
    "vpc-endpoint": "aws:ec2/vpcEndpoint:VpcEndpoint",
    "internet-gateway": "aws:ec2/internetGateway:InternetGateway",
    "natgateway": "aws:ec2/natGateway:NatGateway",
    "elastic-ip": "aws:ec2/eip:Eip",
    "placement-group": "aws:ec2/placementGroup:PlacementGroup",
    "launch-template": "aws:ec2/launchTemplate:LaunchTemplate",
    "key-pair": "aws:ec2/keyPair:KeyPair",
    "instance": "aws:ec2/instance:Instance",
    "capacity-reservation": "aws:ec2/capacityReservation:CapacityReservation",
    "volume": "aws:ebs/volume:Volume",
    "network-interface": "aws:ec2/networkInterface:NetworkInterface",
}
EGRESS_RULE = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
BUCKET = "aws:s3/bucket:Bucket"
REPOSITORY = "aws:ecr/repository:Repository"
ROLE = "aws:iam/role:Role"
INSTANCE_PROFILE = "aws:iam/instanceProfile:InstanceProfile"
INSTANCE = EC2["instance"]

PARTS = {
    # Cannot be tagged: parts of a tagged resource, with an id that follows from their inputs. Writing one twice is harmless, but a
    # part with a name of its own would be left behind under the first name; so it is taken in, and the refresh that follows drops
    # it when it does not exist.
    "aws:iam/rolePolicy:RolePolicy": "{role}:{name}",
    "aws:s3/bucketVersioning:BucketVersioning": "{bucket}",
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": "{bucket}",
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": "{bucket}",
    "aws:s3/bucketPolicy:BucketPolicy": "{bucket}",
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls": "{bucket}",
    "aws:ecr/lifecyclePolicy:LifecyclePolicy": "{repository}",
}

ASSOCIATION = "aws:ec2/routeTableAssociation:RouteTableAssociation"

REMADE = frozenset({EC2["security-group"]})
"""Types that are removed and made again instead of taken in: between their creation and its end stands a step that no refresh sees.

A new security group lets everything out until the provider has taken that rule away. Nothing can use a group whose id nobody knew.
"""

ORDER_OF_REMOVAL = (
    # What uses something stands before what it uses.
    INSTANCE,
    EC2["volume"],
    EC2["capacity-reservation"],
    EC2["launch-template"],
    EC2["key-pair"],
    EC2["placement-group"],
    EC2["natgateway"],
    EC2["elastic-ip"],
    EC2["vpc-endpoint"],
    EC2["network-interface"],
    EC2["security-group-rule"],
    EGRESS_RULE,
    EC2["security-group"],
    EC2["route-table"],
    EC2["internet-gateway"],
    EC2["subnet"],
    EC2["vpc"],
    INSTANCE_PROFILE,
    ROLE,
    REPOSITORY,
    BUCKET,
)


@dataclass(frozen=True)
class Found:
    """A thing in AWS that carries a stack's tag; `id` is what Pulumi's state calls it, `owner` tells whose state made it."""

    type: str
    id: str
    name: str
    detail: str = ""
    price_item: str | None = None
    quantity: int = 1
    owner: str | None = None

    def stranger_to(self, owner: str | None) -> bool:
        """Whether another state of the same name made it; unknown counts as ours."""
        return self.owner is not None and owner is not None and self.owner != owner

    @property
    def kind(self) -> str:
        """The type in one word, as `Instance`."""
        return self.type.rpartition(":")[2]
