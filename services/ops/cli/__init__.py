"""The commands of ``turnwire``: arguments and help; the work is imported when a command runs."""
