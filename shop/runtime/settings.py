"""Django settings. Each is read from the environment variable of the same name. Nothing is started here.

Without DATABASE_URL and REDIS_URL the project uses its own servers in the run folder (see `manage.py servers`).
"""

from datetime import timedelta
from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured

from locking.arguments import LONGEST_SECONDS
from servers import RunFolder, ServerError
from servers.postgres import DATABASE, LOCAL
from shop import limits, postgres
from shop.runtime import environment

env = environ.Env()
BASE_DIR = Path(__file__).resolve().parent.parent.parent
RUN_FOLDER = RunFolder.default()

# Servers

# Postgres: postgres://user:password@host:5432/name
DATABASE_URL = env.str("DATABASE_URL", default="")
# Valkey or Redis for the cache, locks, counters and Celery: redis://host:6379/0
REDIS_URL = environment.redis_url("REDIS_URL", default="")
DATABASE_IS_OURS = not DATABASE_URL
REDIS_IS_OURS = not REDIS_URL

# Secrets

# Signs tokens and sessions. While both servers are the project's own, it is generated and kept in the run folder.
SECRET_KEY = env.str("SECRET_KEY", default="")
if not SECRET_KEY:
    if not (DATABASE_IS_OURS and REDIS_IS_OURS):
        raise ImproperlyConfigured("Set SECRET_KEY to a long random text. It signs the tokens of the customers.")
    try:
        SECRET_KEY = RUN_FOLDER.secret_key()
    except ServerError as error:
        raise ImproperlyConfigured(str(error)) from error
if len(SECRET_KEY) < environment.SHORTEST_KEY:
    raise ImproperlyConfigured(
        f"SECRET_KEY must have at least {environment.SHORTEST_KEY} characters. Generate one: "
        'python3 -c "import secrets; print(secrets.token_hex(32))"'
    )
# Shared with the payment provider, which signs its messages. If empty, no order can be paid.
PAYMENT_SECRET = env.str("PAYMENT_SECRET", default="")
# Page of the payment provider, to which the order page leads: http://127.0.0.1:8010/pay/ for `manage.py provider`.
PAYMENT_PAGE = environment.web_address("PAYMENT_PAGE", default="")
if PAYMENT_PAGE and not PAYMENT_SECRET:
    raise ImproperlyConfigured("PAYMENT_PAGE needs PAYMENT_SECRET, which signs what a buyer is to pay there.")
# Without PAYMENT_SECRET, let customers mark their own orders as paid, to try the shop.
PAY_WITHOUT_PROVIDER = environment.boolean("PAY_WITHOUT_PROVIDER", default=False)

# Web

# Show errors with all details in the browser. Use it only on your own machine.
DEBUG = environment.boolean("DEBUG", default=False)
# Host names that the shop answers to, separated by commas.
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
# Origins of the admin behind a proxy, separated by commas: https://shop.example
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])
# Number of reverse proxies in front of the shop. Guesses of passwords, and visitors of the lab, are limited by IP
# address, which is taken from the X-Forwarded-For header that they set, or from the connection if there is none.
NUM_PROXIES = environment.integer("NUM_PROXIES", default=0, minimum=0, maximum=100)
# A proxy in front of the shop serves it by HTTPS alone, and sets the headers X-Forwarded-Proto, -Host and -For. Cookies
# are then sent by HTTPS only, plain HTTP is redirected, browsers remember that, and NUM_PROXIES is at least 1.
HTTPS = environment.boolean("HTTPS", default=False)
# Origins of pictures of products, such as https://pictures.example, separated by commas. The shop's own need no entry.
PICTURE_ORIGINS = environment.origins("PICTURE_ORIGINS", default=[])
# Web page of the code's repository, to which the head of each page leads: https://git.example/shop. If empty, no link.
REPOSITORY_URL = environment.web_address("REPOSITORY_URL", default="")
# Threads of a web process.
WEB_THREADS = environment.integer("WEB_THREADS", default=16, minimum=1, maximum=1000)
# Web processes.
WEB_PROCESSES = environment.integer("WEB_PROCESSES", default=2, minimum=1, maximum=1000)
# Open connections that a web process accepts, including idle ones. Further clients wait until one is closed.
WEB_CONNECTIONS = environment.integer("WEB_CONNECTIONS", default=8192, minimum=1)
# Connections to Postgres that the threads of a web process share. Waiting for one of these is cheaper than waiting for
# a row in Postgres: with 4 for 16 threads the shop sells more, and the slowest answers take less than half the time.
WEB_DATABASE_CONNECTIONS = environment.integer("WEB_DATABASE_CONNECTIONS", default=4, minimum=1, maximum=1000)
# Connections in the pool of a process; 0 for no pool. `manage.py serve` sets it. Commands use one connection at a time,
# and Celery closes a pool after every task, so neither needs a pool.
DATABASE_POOL = environment.integer("DATABASE_POOL", default=0, minimum=0, maximum=1000)
# A pooler such as PgBouncer stands between the shop and Postgres, in transaction or session mode. Then the shop relies
# on no session of Postgres: it prepares no statements, and `session-lock`, `insert-lock` and `lock-table` cannot be
# chosen. The limits on waiting are set on the database role of the web servers, and `manage.py serve` checks them.
DATABASE_POOLER = environment.boolean("DATABASE_POOLER", default=False)
if DATABASE_POOLER and DATABASE_IS_OURS:
    raise ImproperlyConfigured("DATABASE_POOLER needs DATABASE_URL: the project's own Postgres has no pooler.")

# Lab

# Serve the lab: flawed and sound ways of taking stock, on separate tables.
LAB_ENABLED = environment.boolean("LAB_ENABLED", default=False)
if LAB_ENABLED and DATABASE_POOLER:
    raise ImproperlyConfigured("LAB_ENABLED needs a Postgres without DATABASE_POOLER: its sandboxes rely on sessions.")
# Schedules of the lab that run at the same time, each with a Redis database and a Postgres database of its own.
LAB_SANDBOXES = environment.integer("LAB_SANDBOXES", default=2, minimum=1, maximum=1000)

# Orders

# Currency of new sales, and of payments that are reported without one: a code of ISO 4217.
CURRENCY = environment.currency("CURRENCY", default="EUR")
# Seconds in which an order must be paid.
ORDER_TTL = environment.integer("ORDER_TTL", default=900, minimum=1, maximum=environment.YEAR)
# Order requests that a customer may send in a second.
ORDER_RATE = environment.integer("ORDER_RATE", default=10, minimum=1)
# Seconds for which a web process caches a sale.
OFFER_TTL = environment.seconds("OFFER_TTL", default=1.0, minimum=0)
# Seconds for which a web process refuses orders for a sku that was sold out, before it asks again.
SOLD_OUT_TTL = environment.seconds("SOLD_OUT_TTL", default=0.25, minimum=0)
# Seconds before a sale opens at which its stock is preheated.
PREHEAT_LEAD = environment.seconds("PREHEAT_LEAD", default=60.0, minimum=0)
# Seconds after which units reserved for an order that was never saved are released. Longer than any request takes.
RECONCILE_GRACE = environment.seconds("RECONCILE_GRACE", default=60.0, minimum=0)

# Accounts

# Wrong passwords for one account within 15 minutes, on all pages together; then its log-ins are answered 429. An IP
# address from which it has logged in within 7 days has this number for itself.
GUESSES_PER_ACCOUNT = environment.integer("GUESSES_PER_ACCOUNT", default=10, minimum=1)
# Wrong passwords from one IP address within 15 minutes, for all accounts together.
GUESSES_PER_ADDRESS = environment.integer("GUESSES_PER_ADDRESS", default=100, minimum=1)
# Seconds for which an access token is valid. For so long it can still place orders after its user has signed out
# everywhere or has a new password.
ACCESS_TOKEN_TTL = environment.integer("ACCESS_TOKEN_TTL", default=900, minimum=1, maximum=environment.YEAR)

# Mails

# Mail server: smtp+tls://user:password@host:587 or smtp+ssl://user:password@host:465. By default mails are printed.
globals().update(environment.email("EMAIL_URL", default="consolemail://"))
# Sender of the mails to customers.
DEFAULT_FROM_EMAIL = env.str("DEFAULT_FROM_EMAIL", default="shop@localhost")
# Address of the shop in mails: https://shop.example. If empty, their links lead to the host that the request has named.
PUBLIC_URL = environment.origin("PUBLIC_URL", default="")
# Seconds that a thread waits for the mail server.
EMAIL_TIMEOUT = 10

# Strategies

# Seconds after which the stock lock of a dead holder expires. Living holders renew it.
STOCK_LOCK_TTL = environment.seconds("STOCK_LOCK_TTL", default=3.0, minimum=0.1, maximum=LONGEST_SECONDS)
# Seconds that an order waits for a stock lock before it is answered with 503.
STOCK_LOCK_WAIT = environment.seconds("STOCK_LOCK_WAIT", default=5.0, minimum=0, maximum=LONGEST_SECONDS)
# Segments into which `segmented-lock` and `segmented-redis` split the stock of a sku; as many orders can run at the
# same time. To change it during a sale, restart the web processes one after the other, then preheat the sale again.
STOCK_SEGMENTS = environment.integer("STOCK_SEGMENTS", default=5, minimum=1, maximum=1000)
# Let `lua-queue` sell although Redis may evict keys or restart without them (see `maxmemory-policy` and `appendonly`):
# orders that were answered 202 are then lost. Without this consent such a sale is not preheated.
QUEUED_ORDERS_MAY_BE_LOST = environment.boolean("QUEUED_ORDERS_MAY_BE_LOST", default=False)
# The strategies below can be chosen when their setting is not empty.
# `redlock`: independent servers, separated by commas: redis://one:6379/0,redis://two:6379/0,redis://three:6379/0
REDLOCK_URLS = environment.redis_urls("REDLOCK_URLS", default=[])
# `etcd-lock`: http://host:2379
ETCD_URL = env.str("ETCD_URL", default="")
# `zookeeper-lock`: host:2181,host:2181/path
ZOOKEEPER_HOSTS = env.str("ZOOKEEPER_HOSTS", default="")
# `file-lock`, for a shop on one machine: a folder from which no other program deletes files. It is created if its
# parent exists. The default is in the run folder while the database is the project's own, and empty otherwise.
LOCK_FOLDER = env.str("LOCK_FOLDER", default="") or (str(RUN_FOLDER.path / "locks") if DATABASE_IS_OURS else "")

# Metrics

# Count what web servers, workers and beat do, for Prometheus, at `/metrics`.
METRICS = environment.boolean("METRICS", default=True)
# Token with which `/metrics` is read from elsewhere. If empty, it is read from this machine only.
METRICS_TOKEN = env.str("METRICS_TOKEN", default="")
# Folder in which the processes of this machine keep their shared counts. It is created if its parent exists. The
# default is in the run folder.
METRICS_FOLDER = env.str("METRICS_FOLDER", default="") or str(RUN_FOLDER.path / "metrics")

# Send traces of orders to an OpenTelemetry collector. OTEL_EXPORTER_OTLP_ENDPOINT says where it is. This needs the
# packages of requirements-trace.txt.
TRACES = environment.boolean("TRACES", default=False)
if TRACES:
    environment.require_packages("TRACES", "requirements-trace.txt", "opentelemetry.exporter.otlp.proto.http")

# Django: apps, middleware, templates

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
    "allauth",
    "allauth.account",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "shop.runtime.csp.ContentSecurityPolicy",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "shop.pages.error_pages.NotNowMiddleware",
    "shop.admin.checked.NoNulMiddleware",
    "allauth.account.middleware.AccountMiddleware",
]
# The middleware that the addresses below /api/ need: they have no session and no form. docs/performance.md says how
# much CPU time the shorter chain saves.
API_MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "shop.runtime.csp.ContentSecurityPolicy",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "shop.pages.error_pages.NotNowMiddleware",
]
# No redirects: an order that is posted without the last slash would become a GET of the list.
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

# Django: servers

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
    **postgres.CONNECTION,
    **DATABASES["default"].get("OPTIONS", {}),
    # Let Postgres prepare repeated statements. Values are sent separately.
    "server_side_binding": True,
    "prepare_threshold": None if DATABASE_POOLER else 3,
    # Open all connections at the start, not in the first second of a sale. `timeout`: seconds that a request waits for
    # a connection before it is answered with 503.
    "pool": {
        "min_size": DATABASE_POOL,
        "max_size": DATABASE_POOL,
        "timeout": limits.POSTGRES_POOL,
        "connection_class": postgres.BoundedConnection,
    }
    if DATABASE_POOL
    else False,
}

# A cursor in the server outlives its transaction, and so the pooler's connection.
DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = DATABASE_POOLER

if DATABASE_POOL and not DATABASE_POOLER:
    # After these the web server answers a request with 503. `options` in DATABASE_URL override them.
    DATABASES["default"]["OPTIONS"]["options"] = " ".join(
        [
            *(f"-c {name}={seconds}s" for name, seconds in limits.POSTGRES.items()),
            DATABASES["default"]["OPTIONS"].get("options", ""),
        ]
    )

REDIS_LOCATION = REDIS_URL or RUN_FOLDER.valkey_url
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": REDIS_LOCATION,
        # No retries: a script that was sent and not answered may have run. Its caller decides how to ask again.
        "OPTIONS": {
            "CONNECTION_POOL_CLASS": "shop.redis_connections.ConnectionPool",
            "CONNECTION_POOL_KWARGS": {
                "retry": None,
                "socket_timeout": limits.REDIS,
                "socket_connect_timeout": limits.REDIS,
            },
        },
    },
}

CELERY_BROKER_URL = REDIS_LOCATION.replace("unix://", "redis+socket://")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# When Redis refuses a write, as a full one does, let the worker connect again. By default it ends.
CELERY_BROKER_CHANNEL_ERROR_RETRY = True
CELERY_WORKER_CONSUMER = "shop.runtime.broker:QuietConsumer"
CELERY_BEAT_SCHEDULER = "shop.runtime.broker:QuietScheduler"
CELERY_TASK_IGNORE_RESULT = True
# Saving has a queue of its own, so that the tasks of beat do not wait behind its wake-ups: a worker takes from both
# queues in turn. It fetches only as many tasks as it has free threads.
CELERY_TASK_QUEUES: dict[str, dict[str, str]] = {"celery": {}, "saving": {}}
CELERY_TASK_ROUTES = {"shop.runtime.tasks.save_queued_orders": {"queue": "saving"}}
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BEAT_SCHEDULE = {
    "expire-unpaid-orders": {
        "task": "shop.runtime.tasks.expire_unpaid_orders",
        "schedule": timedelta(seconds=10),
        # A task that no worker has started within a minute is dropped: a later one does the same. Shorter times would
        # drop every task of a beat whose clock is some seconds behind the worker's.
        "options": {"expires": 60},
    },
    "reconcile": {
        "task": "shop.runtime.tasks.reconcile",
        "schedule": timedelta(seconds=60),
        "options": {"expires": 60},
    },
    "save-queued-orders": {
        "task": "shop.runtime.tasks.save_queued_orders",
        "schedule": timedelta(seconds=10),
        "options": {"expires": 60},
    },
    "forget-old-sessions": {
        "task": "shop.runtime.tasks.forget_old_sessions",
        "schedule": timedelta(hours=1),
        "options": {"expires": 3600},
    },
    "advance-sales": {
        "task": "shop.runtime.tasks.advance_sales",
        "schedule": timedelta(seconds=5),
        "options": {"expires": 60},
    },
}
CELERY_TIMEZONE = "UTC"

# Security

if HTTPS:
    NUM_PROXIES = max(NUM_PROXIES, 1)
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    USE_X_FORWARDED_HOST = True
    SECURE_SSL_REDIRECT = True
    # Health checks ask the web server itself, without the proxy.
    SECURE_REDIRECT_EXEMPT = [r"^health"]
    SECURE_HSTS_SECONDS = 31_536_000
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = LANGUAGE_COOKIE_SECURE = True
# HSTS for subdomains, and an entry in the browsers' lists, would also affect hosts that are not the shop's. The owner
# of the domain decides about them.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

# Bodies: the web server refuses longer ones, and nothing is uploaded, so no file is written for one.
DATA_UPLOAD_MAX_MEMORY_SIZE = limits.BODY_BYTES
FILE_UPLOAD_HANDLERS: list[str] = []
# The page of a form that is refused because its token is not the one of this browser.
CSRF_FAILURE_VIEW = "shop.pages.error_pages.form_refused"

# REST API

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["shop.api.authentication.TokenAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_PARSER_CLASSES": ["shop.api.parsers.JsonParser"],
    "DEFAULT_RENDERER_CLASSES": ["shop.api.renderers.JsonRenderer"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "shop.api.renderers.OneFormat",
    "DEFAULT_PAGINATION_CLASS": "shop.api.pagination.NewestFirst",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "shop.api.exception_handler.handle_exception",
    "UNAUTHENTICATED_USER": None,
    "NUM_PROXIES": NUM_PROXIES,
}
SIMPLE_JWT = {
    "ACCESS_TOKEN_LIFETIME": timedelta(seconds=ACCESS_TOKEN_TTL),
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

# Accounts, language, static files

LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "sales"
# The pages of accounts are those of django-allauth. Its own backend is not used: passwords have one guard.
SESSION_ENGINE = "shop.accounts.sessions"
AUTHENTICATION_BACKENDS = ["shop.accounts.guesses.GuardedBackend"]
PASSWORD_HASHERS = ["shop.hashers.PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "shop.accounts.passwords.LongEnough"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
ACCOUNT_ADAPTER = "shop.accounts.adapter.AccountAdapter"
ACCOUNT_FORMS = {
    "login": "shop.accounts.forms.LoginForm",
    "signup": "shop.accounts.forms.SignupForm",
    "add_email": "shop.accounts.forms.AddEmailForm",
    "reauthenticate": "shop.accounts.forms.ReauthenticateForm",
    "change_password": "shop.accounts.forms.ChangePasswordForm",
    "reset_password": "shop.accounts.forms.ResetPasswordForm",
    "reset_password_from_key": "shop.accounts.forms.ResetPasswordKeyForm",
}
ACCOUNT_LOGIN_METHODS = {"username", "email"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "email*", "password1*"]
# A log-in needs a confirmed address. The answer to a sign-up does not tell whether the address has an account; a log-in
# afterwards does, so allauth limits sign-ups by address.
ACCOUNT_EMAIL_VERIFICATION = "mandatory"
# An account has one address. A new one replaces it once it is confirmed, and the old one is told.
ACCOUNT_CHANGE_EMAIL = True
ACCOUNT_EMAIL_NOTIFICATIONS = True
# Ask for the password again before the address is changed.
ACCOUNT_REAUTHENTICATION_REQUIRED = True
ACCOUNT_REAUTHENTICATION_METHODS = {"password"}
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
ACCOUNT_EMAIL_CONFIRMATION_AUTHENTICATED_REDIRECT_URL = "account"
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_LOGOUT_REDIRECT_URL = "home"
ACCOUNT_DEFAULT_HTTP_PROTOCOL = "https" if HTTPS else "http"
# GUESSES_PER_ACCOUNT and GUESSES_PER_ADDRESS limit log-ins. All other limits are those of allauth.
ACCOUNT_RATE_LIMITS = {"login": None, "login_failed": None}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en"
# Languages of the pages. The pages choose the language, not a middleware, so that the answers of the API do not
# depend on it.
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
TIME_ZONE = "UTC"
FORMAT_MODULE_PATH = ["shop.formats"]
USE_TZ = True
STATIC_URL = "static/"
# Serve the files of the apps directly, without a build step and without `collectstatic`.
WHITENOISE_USE_FINDERS = True

# Admin and logging

UNFOLD = {
    "SITE_TITLE": "Last Unit",
    "SITE_HEADER": "Last Unit",
    "SITE_SUBHEADER": "All times in UTC",
    "SITE_SYMBOL": "inventory_2",
    # The blue of the shop's own pages.
    "COLORS": {
        "primary": {
            "50": "#eef4fb",
            "100": "#dde8f6",
            "200": "#bfd5ef",
            "300": "#9cbfe7",
            "400": "#8fb8f4",
            "500": "#4d83c4",
            "600": "#1d4f91",
            "700": "#1a457e",
            "800": "#163a6a",
            "900": "#122f56",
            "950": "#0c2039",
        },
    },
    "SITE_FAVICONS": [{"rel": "icon", "href": "/static/shop/icon.svg"}],
    "DASHBOARD_CALLBACK": "shop.admin.dashboard.context",
    "SIDEBAR": {"navigation": "shop.admin.sidebar.navigation"},
}

# The log of web servers, workers and beat: text, or json for one JSON object a line.
LOG_FORMAT = environment.choice("LOG_FORMAT", default="text", choices=("text", "json"))
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"text": {}, "json": {"()": "shop.runtime.logs.JsonFormatter"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT}},
    # Do not log refused requests: there may be ten thousand a second. A 503 that needs a person logs its own line.
    "filters": {
        "not_refused": {
            "()": "django.utils.log.CallbackFilter",
            "callback": lambda record: getattr(record, "status_code", 0) != 503,
        }
    },
    "loggers": {
        "django.request": {"level": "ERROR", "filters": ["not_refused"]},
        # The mistake of a client is in its answer. Logged, with a traceback of 2 kB, it would let anyone fill the disk.
        "django.security": {"level": "CRITICAL"},
        # While Redis is full, it warns each second, with a traceback, that its keys were not renewed.
        "kombu.transport.redis": {"level": "ERROR"},
    },
    # LOG_LEVEL: DEBUG, INFO, WARNING, ERROR or CRITICAL.
    "root": {"handlers": ["console"], "level": environment.log_level("LOG_LEVEL", default="WARNING")},
}
