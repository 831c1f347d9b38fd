"""How long, and for how many bytes, one request may keep the shop waiting. All times are in seconds."""

HEAD = 10
"""To send the head of a request, counted from the connection or from the answer before. Idle connections end here."""

ANNOUNCED_IDLE = 2
"""What the Keep-Alive header promises an idle connection. Less than `HEAD`: a client that keeps to it is never cut."""

BODY = 10
"""To send the body after the head. Until it is complete, the request has no thread."""

BODY_BYTES = 64 * 1024
"""Length of a body. No order comes near it, and nothing is uploaded anywhere."""

DISCARDED_BYTES = 16 * 1024 * 1024
"""Length up to which a body that is too long is read and dropped, so that its sender sees the answer."""

HEAD_BYTES = 32 * 1024
"""Length of the head of a request, roughly: the server compares after each read, so it also accepts a little more."""

POSTGRES = {"lock_timeout": 5, "statement_timeout": 10, "idle_in_transaction_session_timeout": 10}
"""Limits that Postgres keeps, while it can."""

POSTGRES_CONNECT = 5
"""To open a connection to Postgres."""

POSTGRES_SILENCE = POSTGRES["statement_timeout"] + 2
"""To wait for an answer of Postgres. When it is stopped or cut off, its own limits do not end the wait."""

POSTGRES_POOL = 10
"""To wait for a connection of the pool."""

REDIS = 2
"""To connect to Redis, and to wait for one of its answers."""

UNREAD = 10
"""For a client to make room for the rest of an answer that it does not read. Then the connection is cut."""

REQUEST = 20
"""To answer a request that has arrived completely. After that it is answered with 503, whatever it waits for."""

DRAIN = ANNOUNCED_IDLE + 1
"""For which a web process that is told to stop still takes requests, to announce it with `Connection: close`."""

STOP = DRAIN + HEAD + BODY + REQUEST + 3
"""After which a web process that was told to stop is killed: every request that it has accepted was answered."""
