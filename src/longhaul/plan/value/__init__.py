"""The value of data: what is trained to tell it, and what the losses say. Pure."""
