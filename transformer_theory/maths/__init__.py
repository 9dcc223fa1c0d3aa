"""Linear algebra that several theories use."""
