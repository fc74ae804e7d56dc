"""The one home of psycopg: pooled connections, short pipelined transactions, queries by name."""

from libs.postgres.database import Database, Row, Session, Statement, Transaction
from libs.postgres.queries import load_queries

__all__ = ["Database", "Row", "Session", "Statement", "Transaction", "load_queries"]
