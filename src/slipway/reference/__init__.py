"""The CPU reference engine's model: a tiny Laguna made from nothing, and numpy code that runs it.

`checkpoint` writes a small, byte-reproducible checkpoint with the files, names and shapes of a real one; `model` loads
such a folder and computes logits that agree with transformers' own Laguna. Both are what tests and `invoke demo` use
where a GPU, a hub and 225 GB of weights are not at hand.
"""
