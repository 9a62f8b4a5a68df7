"""What we need of a target: its layers, embedding and head, its taps, its memory, and whether a drafter fits."""
