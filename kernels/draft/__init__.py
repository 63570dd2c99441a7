"""The drafter's sequential head, its loss, and the statistics of its law."""
