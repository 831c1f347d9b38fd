"""Argument checks for the locks on Redis, and for the functions that list and release such locks."""

from __future__ import annotations

from redis.client import Pipeline
from redis.cluster import ClusterPipeline

from locking.arguments import require_client, require_name


def require_redis(client: object, *kinds: type) -> None:
    """Check that `client` has one of these classes and is not a pipeline.

    Raises:
        TypeError: `client` has another class, or is a pipeline: a subclass of the client that only collects commands.
    """
    require_client(client, *kinds)
    if isinstance(client, Pipeline | ClusterPipeline):
        raise TypeError(
            f"the client of this lock must be one that sends each command at once, not a redis.{type(client).__name__}"
            ": pass the client that made the pipeline"
        )


def require_key_name(name: str) -> str:
    """Check that `name` can be part of a Redis key, and return its text.

    Raises:
        TypeError: `name` is not a `str`.
        ValueError: `name` is empty or cannot be encoded as UTF-8.
    """
    text = require_name(name)
    text.encode()  # raises UnicodeEncodeError, a ValueError, for an unpaired surrogate
    return text


def require_tag(name: str) -> str:
    """Check that `name` can be the hash tag of the keys of a `RedisLock`, and return its text.

    Raises:
        TypeError: `name` is not a `str`.
        ValueError: `name` is empty, cannot be encoded as UTF-8, or contains braces.
    """
    text = require_key_name(name)
    if "{" in text or "}" in text:
        raise ValueError(f"the name of a Redis lock may not contain braces, which mark its hash tag: {text!r}")
    return text
