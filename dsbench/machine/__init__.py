"""What this machine is and can: doctor, kernel benchmarks, self-test, round timelines."""
