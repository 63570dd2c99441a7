"""What is deployed: models, engines, cost tables, replayed acceptance."""
