"""Drafters on disk: one reader per published dialect, one writer per layout we write, and the Hub."""
