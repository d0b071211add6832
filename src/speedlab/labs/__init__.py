"""What the labs measure: one module each, a function for each experiment. See `registry`."""
