"""Checkpoints: locked file by file, fetched and hashed in one pass, published atomically, verified offline.

`lock` and `upstream` need pydantic and huggingface_hub; every other module here is standard library only and older-Python
tolerant, because it is sent to hosts that have nothing but a `python3`.
"""
