"""How a long-lived process collects garbage: less often, and never what its imports made."""

import gc

YOUNG_OBJECTS = 20_000
"""Allocations between two collections. One batch makes thousands of short-lived objects that
reference counts free anyway; Python's default of 700 looks through them several times a batch."""


def collect_rarely() -> None:
    """Set the collector up; called once, when everything was imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
