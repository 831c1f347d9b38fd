"""Limits on the time and the bytes of one request. All times are in seconds."""

HEAD = 10
"""Time from the connection or the last response to the end of a request's head.

If the head is not complete by then, the server cuts the connection.
"""

ANNOUNCED_IDLE = 2
"""The idle time in the Keep-Alive header. It is shorter than `HEAD`, so a client that obeys it is not cut off."""

BODY = 10
"""Time for a client to send the body, after the head. The request gets a thread only when its body is complete."""

BODY_BYTES = 64 * 1024
"""Maximum length of a body. Orders are much shorter, and no page accepts an upload."""

DISCARDED_BYTES = 16 * 1024 * 1024
"""Length up to which the server reads and discards a body that is too long, so that the client gets the response."""

HEAD_BYTES = 32 * 1024
"""Approximate maximum length of the head of a request: the server checks it after each read."""

POSTGRES = {"lock_timeout": 5, "statement_timeout": 10, "idle_in_transaction_session_timeout": 10}
"""Limits that Postgres itself enforces. A Postgres that hangs does not enforce them."""

POSTGRES_CONNECT = 5
"""Time to open a connection to Postgres."""

POSTGRES_SILENCE = POSTGRES["statement_timeout"] + 2
"""Time to wait for an answer of Postgres. If Postgres hangs or is cut off, it cannot enforce its own limits."""

POSTGRES_POOL = 10
"""Time to wait for a connection from the pool."""

REDIS = 2
"""Time to connect to Redis, and time to wait for each of its answers."""

UNREAD = 10
"""Time to wait for a client that does not read its response. After that, the server cuts the connection."""

REQUEST = 20
"""Time to answer a request that has arrived completely. After that, the server answers it with 503."""

STREAMS = 2
"""Maximum number of responses that a web process sends in pieces at the same time, such as exports.

Each of these responses uses a thread, and a connection to Postgres while it makes a piece.
"""

DRAIN = ANNOUNCED_IDLE + 1
"""Maximum time in which a stopping web process still takes requests. It answers them with `Connection: close`."""

STOP = DRAIN + HEAD + BODY + REQUEST + 3
"""Time after which a stopping web process is killed.

By then it has answered every request that it accepted. But a response that it sends in pieces may be cut off.
"""
