"""The data sources that a program asks the provider for, from the same account."""

import json

from aws.lifecycle import Refused, client


def availability_zones(arguments, region):
    zones = client("ec2", region).describe_availability_zones()["AvailabilityZones"]
    names = [zone["ZoneName"] for zone in zones]
    return {"id": region, "names": names, "zoneIds": [zone["ZoneId"] for zone in zones]}


def caller_identity(arguments, region):
    who = client("sts", region).get_caller_identity()
    return {"id": who["Account"], "accountId": who["Account"], "arn": who["Arn"], "userId": who["UserId"]}


def region_name(arguments, region):
    return {"id": region, "name": region, "region": region, "endpoint": f"ec2.{region}.amazonaws.com"}


def partition(arguments, region):
    return {"id": "aws", "partition": "aws", "dnsSuffix": "amazonaws.com", "reverseDnsPrefix": "com.amazonaws"}


def policy_document(arguments, region):
    statements = []
    for given in arguments.get("statements", []):
        statement = {"Effect": given.get("effect", "Allow"), "Action": given.get("actions", [])}
        if given.get("sid"):
            statement["Sid"] = given["sid"]
        if given.get("resources"):
            statement["Resource"] = given["resources"]
        for principal in given.get("principals", []):
            statement.setdefault("Principal", {})[principal["type"]] = principal["identifiers"]
        statements.append(statement)
    text = json.dumps({"Version": "2012-10-17", "Statement": statements})
    return {"id": str(abs(hash(text))), "json": text, "minifiedJson": text}


KNOWN = {
    "aws:index/getAvailabilityZones:getAvailabilityZones": availability_zones,
    "aws:index/getCallerIdentity:getCallerIdentity": caller_identity,
    "aws:index/getRegion:getRegion": region_name,
    "aws:index/getPartition:getPartition": partition,
    "aws:iam/getPolicyDocument:getPolicyDocument": policy_document,
}


def answer(token, arguments, region):
    """What the data source `token` says; one that stands here for no test is refused."""
    if token not in KNOWN:
        raise Refused("unknown", f"the stand-in provider knows no {token}; add it to invokes.py")
    return KNOWN[token](arguments, region)
