"""Sweeps: the plan, the order of its repeats, the launchers, and one repeat of a cell."""
