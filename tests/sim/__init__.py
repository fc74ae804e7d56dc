"""The whole house in one process, on virtual time, under a seeded scheduler that makes faults."""
