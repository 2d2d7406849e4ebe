"""Training: from events and point-in-time features to a bundle."""
