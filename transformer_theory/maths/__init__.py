"""Mathematics that several theories use: linear algebra and primitives in the log domain."""
