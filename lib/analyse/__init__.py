"""Records, and what others published, to numbers."""
