"""The command line of Turnwire; no server runs here."""
