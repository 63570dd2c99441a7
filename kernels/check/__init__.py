"""Every op with its reference, inputs, tolerance and costs."""
