"""What the target is asked: collected, written by itself, filtered."""
