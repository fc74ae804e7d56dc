"""The services of Turnwire, one folder each; they never import one another."""
