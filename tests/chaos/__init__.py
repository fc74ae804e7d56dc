"""Chaos on real processes: the whole house under load, faults by a seeded schedule."""
