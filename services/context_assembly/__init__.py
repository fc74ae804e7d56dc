"""Decides what the model is shown in each step of a turn, and stores that before it is shown."""
