"""Make a drafter from nothing but the target: answers, anchors, losses, one readable loop."""
