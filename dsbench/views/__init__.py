"""What a reader sees: a topic a file, its table, its picture and its section of the report. No torch."""
