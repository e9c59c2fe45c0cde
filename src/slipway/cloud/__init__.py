"""What a cloud stack is made of, computed without a cloud: settings, network cards, access, permissions, costs, policies.

Pure functions over plain values. `infra/` turns them into resources with Pulumi; `invoke preview` prints them without it.
"""
