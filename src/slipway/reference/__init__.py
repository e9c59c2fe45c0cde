"""The embedded default: a reference engine and a local hub that need no GPU, no account and no network."""
