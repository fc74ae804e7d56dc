"""HTTP in, SSE out, pages: who may ask, and what a client sees."""
