"""What goes wrong with the places of media."""

from __future__ import annotations


class StoreFailed(Exception):
    """The place does not take or give the bytes just now; the message says why."""
