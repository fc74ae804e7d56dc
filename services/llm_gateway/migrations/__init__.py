"""SQL files of this service's schema, applied by ``turnwire migrate``."""
