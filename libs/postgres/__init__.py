"""The one home of psycopg: pooled connections, short pipelined transactions, queries by name."""

from libs.postgres.database import Database, Session, Transaction
from libs.postgres.pipelined import Row, Statement
from libs.postgres.queries import load_queries

__all__ = ["Database", "Row", "Session", "Statement", "Transaction", "load_queries"]
