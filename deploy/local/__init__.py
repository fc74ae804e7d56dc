"""The local stack: real servers from Python wheels, each a process of its own on 127.0.0.1."""
