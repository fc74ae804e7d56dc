"""What operators see and do, for page and command line alike: ids, states, counts, times."""

from libs.operating.acting import Acts, Refusal
from libs.operating.reading import Reads
from libs.operating.story import end_ids

__all__ = ["Acts", "Reads", "Refusal", "end_ids"]
