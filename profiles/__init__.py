"""Measured files: cost tables, calibrations, contracts. numpy, no torch."""
