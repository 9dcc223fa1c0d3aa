"""Linear algebra for several theories."""
