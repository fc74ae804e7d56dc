"""One lease per worker process: it beats, and it fences itself when beating fails."""

from libs.leases.lease import LeaseTimes, WorkerLease

__all__ = ["LeaseTimes", "WorkerLease"]
