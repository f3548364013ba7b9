"""The longer experiments of the notebooks, one module per notebook: pure functions that return arrays."""
