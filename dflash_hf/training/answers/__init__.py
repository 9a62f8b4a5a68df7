"""What the target says: decoded in batches, written down, read back."""
