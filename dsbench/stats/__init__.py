"""Intervals, block bootstrap, noise. Plain numpy."""
