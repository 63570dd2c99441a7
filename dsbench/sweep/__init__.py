"""Sweeps: what is planned, in which order it runs, who runs it, one repeat of a cell."""
