"""Slipway: from a pinned recipe to a verified Laguna endpoint."""

__version__ = "0.1.0"
