"""What ingestion does with each topic it reads: one module per topic."""
