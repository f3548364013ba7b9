"""Attention as people write it, right and wrong, to try `checks.diagnose` on."""
