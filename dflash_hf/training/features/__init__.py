"""What the target's tapped layers put out for a document: computed or kept."""
