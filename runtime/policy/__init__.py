"""Policies: from history and prices to a plan of a round. No torch."""
