"""Facts and tests of this machine: doctor, kernel benchmarks, self-test, round timelines."""
