"""The result store and the numbers of a cell."""
