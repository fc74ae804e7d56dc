"""The backend most teams would write instead, and how it is measured beside Turnwire."""
