"""Model calls: leased, fenced, streamed, and each finished once."""
