"""Making and judging drafters: train, calibrate, compare, record acceptance traces."""
