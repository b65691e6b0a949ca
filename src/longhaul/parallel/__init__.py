"""Many processes as one trainer: their places, the mesh they form, and words between them."""
