"""Live streams and bells in Redis; all of it may be lost at any moment."""
