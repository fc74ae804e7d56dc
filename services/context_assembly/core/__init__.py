"""Pure decisions of context assembly: which messages fit, how they are rendered, what must hold."""
