"""From stored cells to facts: comparisons, frontiers, waterfalls. Draws nothing."""
