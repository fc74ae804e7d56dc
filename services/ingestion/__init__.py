"""The conversation: accept a message once, order it, commit one answer and one terminal state."""
