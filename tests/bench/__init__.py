"""Measures what a turn costs, beside a direct call of the provider in the same run."""
