"""Models to and from folders in Hugging Face's format."""
