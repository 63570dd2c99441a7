"""Training a drafter: make data, cache features, train, evaluate, write a checkpoint with its card."""
