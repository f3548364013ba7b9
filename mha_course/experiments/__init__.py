"""The longer experiments of the notebooks, one module each: pure functions that return arrays."""
