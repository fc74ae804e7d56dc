"""Processes that say that they run, how they are and how far behind, in a row of their own."""

from libs.heartbeat.heartbeat import Heartbeat

__all__ = ["Heartbeat"]
