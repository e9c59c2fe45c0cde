"""From a fresh host to one that can serve: one shell script, generated, shown before it is run, and safe to run again."""
