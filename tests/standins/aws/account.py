"""moto's server with placement groups and capacity reservations, which moto 5.2 lacks.

Only what moto does not implement stands here, with the rules of EC2's API reference; everything else is moto's own. The state
lives in moto's EC2 backend, so that moto's reset empties it too, and tags are moto's own.
"""

import logging
import secrets
import sys

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, EC2_RESOURCE_TO_PREFIX
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

EC2_RESOURCE_TO_PREFIX.update({"placement-group": "pg", "capacity-reservation": "cr"})
EC2_PREFIX_TO_RESOURCE.update({"pg": "placement-group", "cr": "capacity-reservation"})

STRATEGIES = ("cluster", "spread", "partition")


def kept(response, kind):
    """The store of `kind` in this account and region."""
    return vars(response.ec2_backend).setdefault(f"standin_{kind}", {})


def tag_list(response, resource):
    return [
        {"Key": tag["key"], "Value": tag["value"]}
        for tag in response.ec2_backend.describe_tags({"resource-id": [resource]})
    ]


def tagged(response, kind, resource):
    tags = response._parse_tag_specification(kind).get(kind, {})
    response.ec2_backend.create_tags([resource], tags)


def create_placement_group(self):
    groups, name = kept(self, "placement_groups"), self._get_param("GroupName")
    strategy = self._get_param("Strategy", "cluster")
    if name in groups:
        raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
    if strategy not in STRATEGIES:
        raise EC2ClientError("InvalidParameterValue", f"Value ({strategy}) for parameter strategy is invalid.")
    group = {
        "GroupName": name,
        "State": "available",
        "Strategy": strategy,
        "GroupId": f"pg-{secrets.token_hex(9)[:17]}",
    }
    if strategy == "spread":
        group["SpreadLevel"] = self._get_param("SpreadLevel", "rack")
    if strategy == "partition":
        group["PartitionCount"] = int(self._get_param("PartitionCount", 2))
    region, account = self.ec2_backend.region_name, self.ec2_backend.account_id
    group["GroupArn"] = f"arn:aws:ec2:{region}:{account}:placement-group/{name}"
    groups[name] = group
    tagged(self, "placement-group", group["GroupId"])
    return ActionResult({"PlacementGroup": {**group, "Tags": tag_list(self, group["GroupId"])}})


def describe_placement_groups(self):
    groups = kept(self, "placement_groups")
    names, ids = self._get_param("GroupNames", []), self._get_param("GroupIds", [])
    for name in names:
        if name not in groups:
            raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    found = [g for g in groups.values() if (not names or g["GroupName"] in names) and (not ids or g["GroupId"] in ids)]
    return ActionResult({"PlacementGroups": [{**group, "Tags": tag_list(self, group["GroupId"])} for group in found]})


def delete_placement_group(self):
    groups, name = kept(self, "placement_groups"), self._get_param("GroupName")
    if name not in groups:
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    self.ec2_backend.tags.pop(groups.pop(name)["GroupId"], None)
    return ActionResult({})


def create_capacity_reservation(self):
    reservations = kept(self, "capacity_reservations")
    identity = f"cr-{secrets.token_hex(9)[:17]}"
    count = int(self._get_param("InstanceCount"))
    reservations[identity] = {
        "CapacityReservationId": identity,
        "InstanceType": self._get_param("InstanceType"),
        "InstancePlatform": self._get_param("InstancePlatform"),
        "AvailabilityZone": self._get_param("AvailabilityZone"),
        "TotalInstanceCount": count,
        "AvailableInstanceCount": count,
        "InstanceMatchCriteria": self._get_param("InstanceMatchCriteria", "open"),
        "State": "active",
        "OwnerId": self.ec2_backend.account_id,
    }
    tagged(self, "capacity-reservation", identity)
    return ActionResult({"CapacityReservation": reservations[identity]})


def describe_capacity_reservations(self):
    reservations, ids = kept(self, "capacity_reservations"), self._get_param("CapacityReservationIds", [])
    for identity in ids:
        if identity not in reservations:
            text = f"The capacity reservation '{identity}' does not exist."
            raise EC2ClientError("InvalidCapacityReservationId.NotFound", text)
    found = [entry for identity, entry in reservations.items() if not ids or identity in ids]
    tags = ({"Tags": tag_list(self, entry["CapacityReservationId"])} for entry in found)
    return ActionResult({"CapacityReservations": [{**entry, **tag} for entry, tag in zip(found, tags, strict=True)]})


def cancel_capacity_reservation(self):
    # A cancelled reservation stays visible for a while, as in EC2.
    identity = self._get_param("CapacityReservationId")
    if identity not in kept(self, "capacity_reservations"):
        text = f"The capacity reservation '{identity}' does not exist."
        raise EC2ClientError("InvalidCapacityReservationId.NotFound", text)
    kept(self, "capacity_reservations")[identity]["State"] = "cancelled"
    return ActionResult({"Return": True})


ADDED = (
    create_placement_group,
    describe_placement_groups,
    delete_placement_group,
    create_capacity_reservation,
    describe_capacity_reservations,
    cancel_capacity_reservation,
)


def add_missing_calls():
    """Give moto's EC2 the calls above; refuses when a newer moto has learnt one, because moto's own is then the better one."""
    for call in ADDED:
        assert not hasattr(EC2Response, call.__name__), f"moto has {call.__name__} now; remove it here"
        setattr(EC2Response, call.__name__, call)


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_):
        pass


def main():
    add_missing_calls()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = DomainDispatcherApplication(create_backend_app)
    server = make_server(
        "127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0, app, threaded=True, request_handler=Quiet
    )
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
