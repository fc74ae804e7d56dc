"""Decisions of the gateway, as pure functions."""
