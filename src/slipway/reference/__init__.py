"""The embedded default: a tiny Laguna made from nothing, a numpy engine that serves it, and a local hub it is fetched from.

What tests and `invoke demo` use where no GPU, no account and no 225 GB of weights are at hand. The bytes, the tokens and the
HTTP are real; only the size is not.
"""
