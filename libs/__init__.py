"""Mechanics that two or more services share; no decision of the domain lives here."""
