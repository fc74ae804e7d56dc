"""Adapters of the ``Provider`` port: one per wire protocol, and the twin in memory."""
