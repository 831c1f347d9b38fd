"""The names that a step reads and writes. The search uses them to skip equivalent schedules."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path

import pytest
from kazoo.protocol.serialization import Create2, GetChildren

import inventory
import locking
from lab.explorer.terms import EVERYTHING, POSTGRES, PendingStep
from lab.sandbox.sandbox import Sandbox
from lab.sandbox.steps import QUIET, READS, of_commands, of_statement, scripts
from lab.workloads.zookeeper import QUEUE, of_request

HARMLESS = QUIET | {"WATCH"}
"""Commands that change nothing, although the server does not mark them read-only."""


def test_the_server_agrees_which_commands_only_read(sandbox: Sandbox) -> None:
    """Otherwise the search would skip schedules that it must try."""
    for name in sorted((READS | QUIET) - HARMLESS):
        [(_, _, flags, *_)] = sandbox.redis.execute_command("COMMAND INFO", name)
        assert b"readonly" in flags, name


COMMANDS = (
    "GET a; MGET a b; PTTL a; TTL a; EXISTS a b; HGET a field; HGETALL a; LRANGE a 0 1; LLEN a; LINDEX a 0; "
    "SET a 1 NX PX 100; SETNX a 1; GETSET a 1; EXPIRE a 1; PEXPIRE a 1; DEL a b; UNLINK a b; DECR a; DECRBY a 2; "
    "INCR a; INCRBY a 2; HSET a field 1; HSETNX a field 1; HDEL a field; RPUSH a 1; LPUSH a 1; LPOP a; ZADD a 1 b; "
    "BLPOP a b 5; EVAL script 2 a b argument; EVALSHA digest 1 a argument; WATCH a b"
)


@pytest.mark.parametrize("text", COMMANDS.split("; "))
def test_the_server_agrees_which_keys_a_command_touches(sandbox: Sandbox, text: str) -> None:
    command = text.split()
    step = of_commands([command])
    keys = set(sandbox.redis.execute_command("COMMAND GETKEYS", *command))
    assert step.reads | step.writes == keys
    assert step.reads == (keys if command[0] in READS else set())


def test_every_script_is_shown_by_the_name_of_its_file() -> None:
    files = {path.name for package in (inventory, locking) for path in Path(package.__file__).parent.rglob("*.lua")}
    assert set(scripts().values()) == files
    for text, name in scripts().items():
        digest = sha1(text.encode(), usedforsecurity=False).hexdigest()
        for command in (("EVAL", text, "1", "a"), ("EVALSHA", digest, "1", "a")):
            assert of_commands([command]).does == f"{name}: a"


def test_an_unknown_command_touches_everything_and_a_transaction_what_its_commands_touch() -> None:
    for command in (("KEYS", "*"), ("DBSIZE",), ("FLUSHDB",), ("SOMETHING",)):
        assert of_commands([command]).writes == {EVERYTHING}
    step = of_commands([("MULTI",), ("GET", "a"), ("GET", "b"), ("SET", "b", "1"), ("EXEC",)])
    assert (step.reads, step.writes) == ({"a"}, {"b"})


READING = ["SELECT 1", 'SELECT "on_hand" FROM "inventory_stockitem" WHERE "sku" = $1']
CHANGING = [
    'UPDATE "inventory_stockitem" SET "on_hand" = 1',
    'SELECT "on_hand" FROM "inventory_stockitem" FOR UPDATE',
    'SELECT "on_hand" FROM "inventory_stockitem" FOR NO KEY UPDATE SKIP LOCKED',
    'SELECT "on_hand" FROM "inventory_stockitem" FOR SHARE',
    "SELECT pg_advisory_xact_lock(1)",
    "SELECT pg_try_advisory_lock(1)",
    "select pg_notify('channel', '')",
    "SELECT nextval('lock_fence')",
    "SELECT setval('lock_fence', 1)",
    "WITH taken AS (UPDATE inventory_stockitem SET on_hand = 1 RETURNING on_hand) SELECT * FROM taken",
    "COMMIT",
]
UNSEEN = ["BEGIN", "SET LOCAL lock_timeout = 1", "SAVEPOINT one", "RELEASE SAVEPOINT one", "SHOW lock_timeout"]


def test_a_statement_that_changes_or_locks_something_commutes_with_no_other() -> None:
    def footprint(step: PendingStep) -> tuple[bool, bool]:
        return POSTGRES in step.reads, POSTGRES in step.writes

    assert {sql: footprint(of_statement(sql)) for sql in READING} == dict.fromkeys(READING, (True, False))
    assert {sql: footprint(of_statement(sql)) for sql in CHANGING} == dict.fromkeys(CHANGING, (False, True))
    assert {sql: footprint(of_statement(sql)) for sql in UNSEEN} == dict.fromkeys(UNSEEN, (False, False))


def test_a_step_of_zookeeper_says_what_it_does_to_the_queue() -> None:
    joins = of_request(Create2("/queue/lock-", b"", [], 3))
    assert (joins.does, joins.writes, joins.reads) == ("create2: joins the queue", {QUEUE}, frozenset())
    looks = of_request(GetChildren("/queue", None))
    assert (looks.does, looks.writes, looks.reads) == ("getChildren: reads the queue", frozenset(), {QUEUE})
