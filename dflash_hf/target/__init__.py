"""What we need of a target: where its layers, embedding and head are, its taps, its memory, and whether a drafter fits."""
