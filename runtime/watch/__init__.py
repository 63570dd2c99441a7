"""Timing, timelines and device errors."""
