"""Describe a Redis command or an SQL statement as a pending step: a text for people, and names of the data used."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Any

import locking
from inventory.counters.scripts import all_scripts
from lab.explorer.terms import EVERYTHING, POSTGRES, PendingStep

READS = frozenset({"GET", "MGET", "PTTL", "TTL", "EXISTS", "HGET", "HGETALL", "LRANGE", "LLEN", "LINDEX", "WATCH"})
"""Redis commands that change no data. Any two of them commute: their order does not matter."""
QUIET = frozenset({"UNWATCH", "PING"})
"""Redis commands that no other client can notice."""

RANDOM = re.compile(r"\b[0-9a-f]{16,64}\b|\b[0-9a-f]{8}-[0-9a-f-]{27}\b")
MAX_TEXT = 160
"""Maximum length of a step's text, in characters."""


def of_commands(commands: Sequence[Sequence[Any]]) -> PendingStep:
    """Return the step for one message to Redis: a command or a pipeline."""
    texts = [[part.decode() if isinstance(part, bytes) else str(part) for part in command] for command in commands]
    reads: set[str] = set()
    writes: set[str] = set()
    seconds = None
    for text in texts:
        name = text[0].upper()
        keys = keys_of(text)
        if name in QUIET:
            continue
        (reads if name in READS else writes).update(keys)
        if name == "BLPOP":
            seconds = float(text[-1]) or float("inf")
    does = "; ".join(shown(text) for text in texts)
    return PendingStep(does[:MAX_TEXT], "redis", frozenset(reads - writes), frozenset(writes), seconds)


def keys_of(text: Sequence[str]) -> Sequence[str]:
    """Return the keys that a Redis command touches."""
    name = text[0].upper()
    if name in ("EVAL", "EVALSHA", "FCALL"):
        return text[3 : 3 + int(text[2])]
    if name == "BLPOP":
        return text[1:-1]
    if name in ("MULTI", "EXEC", "UNWATCH", "PING"):
        return []
    if name in ("KEYS", "SCAN", "DBSIZE", "FLUSHDB", "WAIT"):
        return [EVERYTHING]
    if name in ("DEL", "MGET", "EXISTS", "WATCH", "SUBSCRIBE", "UNSUBSCRIBE", "UNLINK"):
        return text[1:]
    return text[1:2] or [EVERYTHING]


def shown(text: Sequence[str]) -> str:
    """Return the text of a Redis command for people, with file names for scripts and `…` for random values."""
    name = text[0].upper()
    if name in ("EVAL", "EVALSHA"):
        script = script_of(text[1]) or first_comment(text[1]) or "script"
        return RANDOM.sub("…", f"{script}: {' '.join(keys_of(text))}")
    # Leave out the timeout of BLPOP: it depends on the time that is left, and differs from run to run.
    return RANDOM.sub("…", " ".join([name, *(text[1:-1] if name == "BLPOP" else text[1:])]))


def first_comment(script: str) -> str:
    """Return a description of a script without a file: the words after `Returns` in its comment."""
    found = re.search(r"(?:Returns|returns) (.*?)[.;\n]", script)
    return f"EVAL ({found[1]})" if found else "EVAL"


@cache
def scripts() -> Mapping[str, str]:
    """Return the file name of each script, by the text that Redis receives."""
    locks = sorted((Path(locking.__file__).parent / "redis" / "scripts").glob("*.lua"))
    return {
        **{path.read_text(encoding="utf-8"): path.name for path in locks},
        **{script: f"{name}.lua" for name, script in all_scripts().items()},
    }


@cache
def script_of(sent: str) -> str | None:
    """Return the file name of a script, given its text or its SHA-1 digest; None for an unknown script."""
    digests = {sha1(text.encode(), usedforsecurity=False).hexdigest(): name for text, name in scripts().items()}
    return scripts().get(sent) or digests.get(sent)


EFFECTS = re.compile(r"\bFOR (?:NO KEY )?UPDATE\b|\bFOR (?:KEY )?SHARE\b|ADVISORY|PG_NOTIFY|NEXTVAL|SETVAL|INTO\b")
"""Matches parts of a SELECT that another session can notice."""


def of_statement(sql: str) -> PendingStep:
    """Return the step for an SQL statement. A write or a lock commutes with no other statement that uses data."""
    text = " ".join(sql.split())
    words = text.upper()
    quiet = words.startswith(("SET ", "SAVEPOINT", "RELEASE", "BEGIN", "SHOW "))
    reads = words.startswith("SELECT") and not EFFECTS.search(words)
    touched = frozenset[str]() if quiet else frozenset({POSTGRES})
    return PendingStep(
        for_people(text),
        "postgres",
        reads=touched if reads else frozenset(),
        writes=frozenset() if reads else touched,
    )


def for_people(sql: str) -> str:
    """Return an SQL statement for people: without quotes, and without the table name before each column."""
    plain = sql.replace('"', "")
    for table in set(re.findall(r"\b((?:lab|inventory|shop|lock)_\w+)\.", plain)):
        plain = plain.replace(f"{table}.", "")
    return RANDOM.sub("…", plain)[:MAX_TEXT]
