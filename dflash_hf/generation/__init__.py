"""The hook into ``generate``, the drafting engine, and the loops."""
