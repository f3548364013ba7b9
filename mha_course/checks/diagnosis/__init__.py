"""Diagnose any attention: find the fault in a module or a function by reproducing its numbers."""
