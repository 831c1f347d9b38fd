"""Add the problem documents to the OpenAPI schema."""

from __future__ import annotations

from typing import Any

from shop.api import problems

EVERYWHERE = (
    problems.UNKNOWN_HOST,
    problems.TOO_SLOW,
    problems.LENGTH_REQUIRED,
    problems.TOO_LARGE,
    problems.UNSUPPORTED,
    problems.NOT_ALLOWED,
    problems.UNAVAILABLE,
)
WITH_TOKEN = (problems.UNAUTHENTICATED,)
ROOM = (problems.NOT_FOUND, problems.SALE_NOT_OPEN, problems.NO_GUESTS, problems.TOO_FAST)
BY_OPERATION = {
    ("/api/orders/", "post"): (
        problems.INVALID,
        problems.KEY_INVALID,
        problems.SOLD_OUT,
        problems.OVER_LIMIT,
        problems.SALE_NOT_OPEN,
        problems.SALE_PAUSED,
        problems.PRICE_CHANGED,
        problems.WAITING_ROOM,
        problems.NO_GUESTS,
        problems.STILL_RUNNING,
        problems.KEY_REUSED,
        problems.TOO_FAST,
        problems.BUSY,
        problems.NOT_LOADED,
    ),
    ("/api/orders/", "get"): (problems.NOT_FOUND,),
    ("/api/orders/{order}/", "get"): (problems.NOT_FOUND, problems.STILL_QUEUED),
    ("/api/orders/{order}/pay/", "post"): (
        problems.PROVIDER_DECIDES,
        problems.NOT_FOUND,
        problems.STILL_QUEUED,
        problems.NOT_PAYABLE,
        problems.BUSY,
    ),
    ("/api/orders/{order}/cancel/", "post"): (
        problems.NOT_FOUND,
        problems.STILL_QUEUED,
        problems.NOT_CANCELLABLE,
        problems.BUSY,
    ),
    ("/api/payments/", "post"): (
        problems.INVALID,
        problems.SIGNATURE,
        problems.UNKNOWN_ORDER,
        problems.WRONG_AMOUNT,
        problems.WRONG_CURRENCY,
        problems.REFERENCE_REUSED,
        problems.BUSY,
    ),
    ("/api/chargebacks/", "post"): (
        problems.INVALID,
        problems.SIGNATURE,
        problems.UNKNOWN_PAYMENT,
        problems.WRONG_AMOUNT,
        problems.WRONG_CURRENCY,
        problems.REFERENCE_REUSED,
        problems.BUSY,
    ),
    ("/api/sales/{sale}/", "get"): (problems.NOT_FOUND,),
    ("/api/sales/{sale}/waiting/", "get"): ROOM,
    ("/api/sales/{sale}/waiting/", "post"): ROOM,
    ("/api/token/", "post"): (
        problems.INVALID,
        problems.WRONG_CREDENTIALS,
        problems.NOT_CONFIRMED,
        problems.TOO_MANY_GUESSES,
        problems.LOGIN_BUSY,
    ),
    ("/api/token/refresh/", "post"): (problems.INVALID, problems.UNAUTHENTICATED),
}
MEMBERS: dict[problems.Problem, dict[str, Any]] = {
    problems.INVALID: {
        "detail": "Correct the fields that `errors` lists.",
        "errors": [{"pointer": "#/sale", "detail": "This field is required."}],
    },
    problems.SOLD_OUT: {"detail": "lamp: 3 wanted, 2 left", "sku": "lamp", "wanted": 3, "left": 2},
}
"""Additional members of the example problem documents, by problem type."""
PROBLEM = {
    "type": "object",
    "description": "Problem document (RFC 9457)",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string", "description": "URL that explains the problem."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "sku": {"type": "string", "description": "The product that the problem is about."},
        "wanted": {"type": "integer", "description": "With `sold-out`: the units that the order wanted of it."},
        "left": {
            "type": "integer",
            "description": "With `sold-out`: the units that are left of it. Missing if some are left and the sale does "
            "not show the exact number.",
        },
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"pointer": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
    },
}


def describe_problems(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add problems, a tag and a summary to every operation. This is a post-processing hook of drf-spectacular."""
    result["components"].setdefault("schemas", {})["Problem"] = PROBLEM
    for path, operations in result["paths"].items():
        for method, operation in operations.items():
            operation["tags"] = [path.split("/")[2]]
            operation["summary"] = operation.get("description", "").partition(".")[0]
            needs_token = any("jwtAuth" in scheme for scheme in operation.get("security", []))
            for problem in (*EVERYWHERE, *(WITH_TOKEN if needs_token else ()), *BY_OPERATION.get((path, method), ())):
                described = operation["responses"].setdefault(
                    str(problem.status),
                    {
                        "description": problem.title,
                        "content": {
                            problems.CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}}
                        },
                    },
                )
                examples = described["content"][problems.CONTENT_TYPE]["examples"]
                examples[problem.slug] = {"value": problems.document(problem, **MEMBERS.get(problem, {}))}
    return result
