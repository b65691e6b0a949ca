"""Training state to files and back: captured, staged, written beside training, read strictly."""
