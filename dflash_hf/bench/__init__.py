"""Measuring: the near-tie judge, paired runs, prompts from files, and what a figure was measured on."""
