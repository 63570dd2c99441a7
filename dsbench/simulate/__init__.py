"""Simulated runs: the decode loop on a counted clock, over recorded acceptance and a cost table."""
