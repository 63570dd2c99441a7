"""The verify budget: its picture, its tables and its section of a report."""
