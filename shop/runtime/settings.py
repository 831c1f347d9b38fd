"""The settings, each read from the environment under its own name. Nothing is started here.

Without DATABASE_URL and REDIS_URL the project's own servers are meant, in the run folder (see `manage.py servers`).
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured

from servers import RunFolder, ServerError
from servers.postgres import DATABASE, LOCAL
from shop.runtime import environment

env = environ.Env()
BASE_DIR = Path(__file__).resolve().parent.parent.parent
RUN_FOLDER = RunFolder.default()

# Where the truth is: postgres://user:password@host:5432/name
DATABASE_URL = env.str("DATABASE_URL", default="")
# Cache, locks, counters and Celery's queue: redis://host:6379/0
REDIS_URL = environment.redis_url("REDIS_URL", default="")
DATABASE_IS_OURS = not DATABASE_URL
REDIS_IS_OURS = not REDIS_URL

# Signs tokens and sessions. Kept in the run folder while both servers are the project's own.
SECRET_KEY = env.str("SECRET_KEY", default="")
if not SECRET_KEY:
    if not (DATABASE_IS_OURS and REDIS_IS_OURS):
        raise ImproperlyConfigured("Set SECRET_KEY to a long random text: it signs the tokens of the buyers.")
    try:
        SECRET_KEY = RUN_FOLDER.secret_key()
    except ServerError as error:
        raise ImproperlyConfigured(str(error)) from error

# Shared with the payment provider, who signs with it what it says of payments: its word counts then, and no customer's.
# Empty: no such message is believed, and an order is paid when its customer says so.
PAYMENT_SECRET = env.str("PAYMENT_SECRET", default="")

# Errors with all their details in the browser: for a machine of your own only.
DEBUG = environment.flag("DEBUG", default=False)
# Host names that the shop answers to, separated by commas.
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
# Origins of the admin behind a proxy, separated by commas: https://shop.example
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])
# Reverse proxies in front of the shop. By their X-Forwarded-For a visitor of the lab is known, who may race for half of
# each hour; without any, by the connection.
NUM_PROXIES = environment.whole("NUM_PROXIES", default=0, least=0)
# The lab's endpoints: strategies that are wrong on purpose, on tables of their own.
LAB_ENABLED = environment.flag("LAB_ENABLED", default=False)
# Schedules of the lab that may run at the same time, each in a Redis and a Postgres database of its own.
LAB_SANDBOXES = environment.whole("LAB_SANDBOXES", default=2, least=1)

# Threads of one web process, and how many processes there are.
WEB_THREADS = environment.whole("WEB_THREADS", default=16, least=1)
WEB_PROCESSES = environment.whole("WEB_PROCESSES", default=2, least=1)
# Connections that one web process accepts: with two processes ten thousand buyers have one each. It counts open
# connections, idle ones too, not requests. Whoever gets none waits outside, and may give up.
WEB_CONNECTIONS = environment.whole("WEB_CONNECTIONS", default=8192, least=1)
# Connections to Postgres of one web process, which its threads share. Who waits for a row waits cheaper for one of
# these than in Postgres: with 4 for 16 threads more is sold, and the slowest answers come in less than half the time.
WEB_DATABASE_CONNECTIONS = environment.whole("WEB_DATABASE_CONNECTIONS", default=4, least=1)
# Connections in the pool of a process; 0 for none. `manage.py serve` sets it. Commands use one connection at a time,
# and Celery closes a pool after every task.
DATABASE_POOL = environment.whole("DATABASE_POOL", default=0, least=0)

# Seconds that a stock lock outlives a holder who died. Living holders renew it.
STOCK_LOCK_TTL = environment.seconds("STOCK_LOCK_TTL", default=3.0, least=0.1)
# Seconds that a buyer waits for a stock lock before the answer is 503.
STOCK_LOCK_WAIT = environment.seconds("STOCK_LOCK_WAIT", default=5.0, least=0)
# Segments into which `segmented-lock` and `segmented-redis` split the stock of a sku: so many buyers at the same time.
# It may be changed while a sale runs: restart the web processes one after the other, and preheat the sale again.
STOCK_SEGMENTS = environment.whole("STOCK_SEGMENTS", default=5, least=1)
# A strategy on each of these can be chosen when it is set.
# `redlock`: independent primaries, separated by commas: redis://one:6379/0,redis://two:6379/0,redis://three:6379/0
REDLOCK_URLS = environment.redis_urls("REDLOCK_URLS", default=[])
# `etcd-lock`: http://host:2379
ETCD_URL = env.str("ETCD_URL", default="")
# `zookeeper-lock`: host:2181,host:2181/path
ZOOKEEPER_HOSTS = env.str("ZOOKEEPER_HOSTS", default="")
# `file-lock`, for a shop on one machine: a folder that nobody tidies, which is made when its parent is there. In
# the run folder while the database is the project's own.
LOCK_FOLDER = env.str("LOCK_FOLDER", default="") or (str(RUN_FOLDER.path / "locks") if DATABASE_IS_OURS else "")
# Seconds in which an order has to be paid.
ORDER_TTL = environment.whole("ORDER_TTL", default=900, least=1)
# Orders that one customer may try to place in a second.
ORDER_RATE = environment.whole("ORDER_RATE", default=10, least=1)
# Seconds for which a web process refuses who wants what it has just found sold out, without asking again.
SOLD_OUT_TTL = environment.seconds("SOLD_OUT_TTL", default=0.25, least=0)
# Seconds for which a web process trusts what it has read of a sale.
OFFER_TTL = environment.seconds("OFFER_TTL", default=1.0, least=0)

# Seconds before a sale opens in which its stock is preheated.
PREHEAT_LEAD = environment.seconds("PREHEAT_LEAD", default=60.0, least=0)
# Seconds after which units that are reserved for an order that never came go back. Longer than any request takes.
RECONCILE_GRACE = environment.seconds("RECONCILE_GRACE", default=60.0, least=0)

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "locking.contrib.django",
    "inventory",
    "shop",
    "lab",
    "loadtest",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
# A redirect would turn an order that was posted without the last slash into a look at the list.
APPEND_SLASH = False
ROOT_URLCONF = "shop.runtime.urls"
WSGI_APPLICATION = "shop.runtime.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]


DATABASES: dict[str, dict[str, Any]] = {
    "default": environment.database("DATABASE_URL", DATABASE_URL)
    if DATABASE_URL
    else {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": str(RUN_FOLDER.postgres_socket),
        "PORT": LOCAL["port"],
        "USER": LOCAL["user"],
        "NAME": DATABASE,
        "OPTIONS": {name: value for name, value in LOCAL.items() if name not in {"port", "user", "password"}},
    }
}
DATABASES["default"]["OPTIONS"] = {
    **DATABASES["default"].get("OPTIONS", {}),
    # Statements are prepared by the server once they come again, and their values are sent apart from them.
    "server_side_binding": True,
    "prepare_threshold": 3,
    # All connections are opened early: a sale's first second is no time for it. `timeout`: seconds that a request waits
    # for a connection before it is answered with 503.
    "pool": {"min_size": DATABASE_POOL, "max_size": DATABASE_POOL, "timeout": 10} if DATABASE_POOL else False,
}

if DATABASE_POOL:
    # In the web server no request waits without end: what takes longer is answered with 503. Seconds; `options` of a
    # DATABASE_URL come later, and win.
    LIMITS = {"lock_timeout": 5, "statement_timeout": 10, "idle_in_transaction_session_timeout": 10}
    DATABASES["default"]["OPTIONS"]["options"] = " ".join(
        [
            *(f"-c {name}={seconds}s" for name, seconds in LIMITS.items()),
            DATABASES["default"]["OPTIONS"].get("options", ""),
        ]
    )

REDIS_LOCATION = REDIS_URL or RUN_FOLDER.valkey_url
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": REDIS_LOCATION,
        # No retries: a script that was sent and not answered may have run. Who calls it knows how to ask again.
        "OPTIONS": {"CONNECTION_POOL_KWARGS": {"retry": None, "socket_timeout": 2, "socket_connect_timeout": 2}},
    },
}

CELERY_BROKER_URL = REDIS_LOCATION.replace("unix://", "redis+socket://")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
# Saving has a queue of its own, and what comes from beat does not stand in line behind its wake-ups: a worker takes
# from both in turns, and no more than its threads can begin with at once.
CELERY_TASK_QUEUES: dict[str, dict[str, str]] = {"celery": {}, "saving": {}}
CELERY_TASK_ROUTES = {"shop.runtime.tasks.save_queued_orders": {"queue": "saving"}}
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BEAT_SCHEDULE = {
    "expire-unpaid-orders": {
        "task": "shop.runtime.tasks.expire_unpaid_orders",
        "schedule": timedelta(seconds=10),
        # A beat that nobody worked on is not worth keeping: the next one does the same.
        "options": {"expires": 10},
    },
    "reconcile": {
        "task": "shop.runtime.tasks.reconcile",
        "schedule": timedelta(seconds=60),
        "options": {"expires": 60},
    },
    "save-queued-orders": {
        "task": "shop.runtime.tasks.save_queued_orders",
        "schedule": timedelta(seconds=10),
        "options": {"expires": 10},
    },
    "advance-sales": {
        "task": "shop.runtime.tasks.advance_sales",
        "schedule": timedelta(seconds=5),
        "options": {"expires": 5},
    },
}
CELERY_TIMEZONE = "UTC"

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework_simplejwt.authentication.JWTStatelessUserAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_PARSER_CLASSES": ["shop.api.parsers.Json"],
    "DEFAULT_RENDERER_CLASSES": ["shop.api.renderers.Json"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "shop.api.renderers.OneFormat",
    "DEFAULT_PAGINATION_CLASS": "shop.api.pagination.NewestFirst",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "shop.api.problems.answer",
    "UNAUTHENTICATED_USER": None,
    "NUM_PROXIES": NUM_PROXIES,
}
SIMPLE_JWT = {
    "ACCESS_TOKEN_LIFETIME": timedelta(hours=1),
    "REFRESH_TOKEN_LIFETIME": timedelta(days=1),
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Last Unit",
    "DESCRIPTION": "A flash-sale shop that sells the last unit exactly once. Errors are RFC 9457 problem documents.",
    "VERSION": "1.0.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SERVE_AUTHENTICATION": [],
    "COMPONENT_SPLIT_REQUEST": True,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "shop.api.schema.describe_problems",
    ],
}

PASSWORD_HASHERS = ["shop.hashers.Hasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en"
# The lab's pages speak them, and choose by themselves: no middleware does, so that every answer of the API is the same.
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
# The apps' own files are served as they are: there is no build step, and nothing to collect before a start.
WHITENOISE_USE_FINDERS = True

UNFOLD = {
    "SITE_TITLE": "Last Unit",
    "SITE_HEADER": "Last Unit",
    "SITE_SUBHEADER": "All times in UTC",
    "SITE_SYMBOL": "inventory_2",
    # In the page itself, so that no browser asks for a /favicon.ico that is not there.
    "SITE_FAVICONS": [
        {
            "rel": "icon",
            "href": "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'>"
            "<rect width='8' height='8' rx='2' fill='purple'/><path d='M3 2h1.5v4' stroke='white' fill='none'/></svg>",
        }
    ],
    "DASHBOARD_CALLBACK": "shop.admin.dashboard.context",
    "SIDEBAR": {"navigation": "shop.admin.sidebar.navigation"},
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    # A refusal is an answer, not an event: ten thousand of them a second would drown what matters.
    "loggers": {"django.request": {"level": "ERROR"}, "django.security.DisallowedHost": {"level": "CRITICAL"}},
    # What is said beside that: DEBUG, INFO, WARNING, ERROR or CRITICAL.
    "root": {"handlers": ["console"], "level": environment.log_level("LOG_LEVEL", default="WARNING")},
}
