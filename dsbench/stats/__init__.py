"""Intervals, block bootstrap, noise. numpy only."""
