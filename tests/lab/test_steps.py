"""What a step is said to touch. The search leaves out schedules on the strength of it."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path

import pytest

import inventory
import locking
from lab.explorer.terms import EVERYTHING, POSTGRES, PendingStep
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.steps import QUIET, READS, of_commands, of_statement, scripts
from tests.lab.schedule_support import sandbox

__all__ = ["sandbox"]

HARMLESS = QUIET | {"WATCH"}
"""They change nothing, but the server does not count them among those that read."""


def test_what_is_said_to_read_only_reads_says_the_server_too(sandbox: Sandbox) -> None:
    """`COMMAND INFO` knows: a command that changes something would let the search leave out what it must try."""
    for name in sorted((READS | QUIET) - HARMLESS):
        [(_, _, flags, *_)] = sandbox.redis.execute_command("COMMAND INFO", name)
        assert b"readonly" in flags, name


COMMANDS = [
    ("GET", "a"),
    ("MGET", "a", "b"),
    ("PTTL", "a"),
    ("TTL", "a"),
    ("EXISTS", "a", "b"),
    ("HGET", "a", "field"),
    ("HGETALL", "a"),
    ("LRANGE", "a", "0", "1"),
    ("LLEN", "a"),
    ("LINDEX", "a", "0"),
    ("SET", "a", "1", "NX", "PX", "100"),
    ("SETNX", "a", "1"),
    ("GETSET", "a", "1"),
    ("EXPIRE", "a", "1"),
    ("PEXPIRE", "a", "1"),
    ("DEL", "a", "b"),
    ("UNLINK", "a", "b"),
    ("DECR", "a"),
    ("DECRBY", "a", "2"),
    ("INCR", "a"),
    ("INCRBY", "a", "2"),
    ("HSET", "a", "field", "1"),
    ("HSETNX", "a", "field", "1"),
    ("HDEL", "a", "field"),
    ("RPUSH", "a", "1"),
    ("LPUSH", "a", "1"),
    ("LPOP", "a"),
    ("ZADD", "a", "1", "b"),
    ("BLPOP", "a", "b", "5"),
    ("EVAL", "return 1", "2", "a", "b", "an argument"),
    ("EVALSHA", "0" * 40, "1", "a", "an argument"),
    ("WATCH", "a", "b"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_command_touches_the_keys_that_the_server_says(sandbox: Sandbox, command: tuple[str, ...]) -> None:
    said = of_commands([command])
    keys = set(sandbox.redis.execute_command("COMMAND GETKEYS", *command))
    assert said.reads | said.writes == keys
    assert said.reads == (keys if command[0] in READS else set())


def test_every_script_of_stock_and_locks_is_shown_by_the_name_of_its_file() -> None:
    files = {path.name for package in (inventory, locking) for path in Path(package.__file__).parent.rglob("*.lua")}
    assert set(scripts().values()) == files
    for text, name in scripts().items():
        digest = sha1(text.encode(), usedforsecurity=False).hexdigest()
        for command in (("EVAL", text, "1", "a"), ("EVALSHA", digest, "1", "a")):
            assert of_commands([command]).does == f"{name}: a"


@pytest.mark.parametrize("command", [("KEYS", "*"), ("DBSIZE",), ("FLUSHDB",), ("SOMETHING",)])
def test_a_command_whose_reach_is_unknown_touches_everything(command: tuple[str, ...]) -> None:
    assert of_commands([command]).writes == {EVERYTHING}


def test_a_transaction_touches_what_its_commands_touch() -> None:
    said = of_commands([("MULTI",), ("GET", "a"), ("GET", "b"), ("SET", "b", "1"), ("EXEC",)])
    assert (said.reads, said.writes) == ({"a"}, {"b"})


READING = ["SELECT 1", 'SELECT "on_hand" FROM "inventory_stockitem" WHERE "sku" = $1']
CHANGING = [
    'UPDATE "inventory_stockitem" SET "on_hand" = 1',
    'INSERT INTO "shop_order" VALUES (1)',
    'DELETE FROM "shop_order"',
    'SELECT "on_hand" FROM "inventory_stockitem" FOR UPDATE',
    'SELECT "on_hand" FROM "inventory_stockitem" FOR NO KEY UPDATE SKIP LOCKED',
    'SELECT "on_hand" FROM "inventory_stockitem" FOR SHARE',
    "SELECT pg_advisory_xact_lock(1)",
    "SELECT pg_try_advisory_lock(1)",
    "select pg_notify('channel', '')",
    "SELECT nextval('lock_fence')",
    "SELECT setval('lock_fence', 1)",
    "WITH taken AS (UPDATE inventory_stockitem SET on_hand = 1 RETURNING on_hand) SELECT * FROM taken",
    "LISTEN channel",
    "COMMIT",
    "ROLLBACK",
    "COPY shop_order FROM STDIN",
]
UNSEEN = ["BEGIN", "SET LOCAL lock_timeout = 1", "SAVEPOINT one", "RELEASE SAVEPOINT one", "SHOW lock_timeout"]


def test_a_statement_that_changes_or_locks_something_is_in_the_way_of_all_others() -> None:
    def footprint(said: PendingStep) -> tuple[bool, bool]:
        return POSTGRES in said.reads, POSTGRES in said.writes

    assert {sql: footprint(of_statement(sql)) for sql in READING} == dict.fromkeys(READING, (True, False))
    assert {sql: footprint(of_statement(sql)) for sql in CHANGING} == dict.fromkeys(CHANGING, (False, True))
    assert {sql: footprint(of_statement(sql)) for sql in UNSEEN} == dict.fromkeys(UNSEEN, (False, False))
