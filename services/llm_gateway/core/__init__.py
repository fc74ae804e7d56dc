"""What the service decides, without a clock, randomness or I/O."""
