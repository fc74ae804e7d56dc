"""Events, topics and stream entries: the contract between the services."""
