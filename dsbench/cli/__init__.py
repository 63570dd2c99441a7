"""The command line: parse flags, call one function. Torch loads late."""
