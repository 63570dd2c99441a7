"""Measured facts as files: cost tables, calibrations, contracts. Plain numpy, no torch."""
