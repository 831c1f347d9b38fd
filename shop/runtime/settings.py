"""Django settings. Most are read from the environment variable of the same name.

Without DATABASE_URL and REDIS_URL the shop uses the project's own servers in the run folder (see `manage.py servers`).
"""

import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from locking.arguments import LONGEST_SECONDS
from servers import RunFolder, ServerError
from servers.postgres import DATABASE, LOCAL
from shop import limits, postgres
from shop.runtime import environment

BASE_DIR = Path(__file__).resolve().parent.parent.parent
RUN_FOLDER = RunFolder.default()

# Servers

# Postgres: postgres://user:password@host:5432/name
DATABASE_URL = environment.text("DATABASE_URL")
# Valkey or Redis for the cache, locks, counters and Celery: redis://host:6379/0
REDIS_URL = environment.redis_url("REDIS_URL", default="")
DATABASE_IS_OURS = not DATABASE_URL
REDIS_IS_OURS = not REDIS_URL

# Secrets

# Key that signs tokens and sessions. If both servers are the project's own, it is generated and kept in the run folder.
SECRET_KEY = environment.text("SECRET_KEY")
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
# Secret shared with the payment provider, which signs its messages with this secret. If it is empty, and
# PAYMENT_PROVIDER is not a class of your own, no provider is connected: see PAY_WITHOUT_PROVIDER.
PAYMENT_SECRET = environment.text("PAYMENT_SECRET")
# Class of the payment provider, by its dotted path: a subclass of shop.payments.provider.PaymentProvider.
PAYMENT_PROVIDER = environment.text("PAYMENT_PROVIDER", default="shop.payments.signed.SignedProvider")
# Page of the payment provider, to which the order page links: http://127.0.0.1:8010/pay/ for `manage.py provider`.
PAYMENT_PAGE = environment.web_address("PAYMENT_PAGE", default="")
if PAYMENT_PAGE and not PAYMENT_SECRET:
    raise ImproperlyConfigured("PAYMENT_PAGE needs PAYMENT_SECRET, which signs what a buyer is to pay there.")
# If no provider is connected, let customers mark their own orders as paid, to try the shop.
PAY_WITHOUT_PROVIDER = environment.boolean("PAY_WITHOUT_PROVIDER", default=False)

# Web

# Show errors with all details in the browser. Use it only on your own machine.
DEBUG = environment.boolean("DEBUG", default=False)
# Host names of the shop, separated by commas. Requests with another Host header get status 400.
ALLOWED_HOSTS = environment.texts("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
# Origins of the shop behind a proxy, for Django's CSRF check, separated by commas: https://shop.example
CSRF_TRUSTED_ORIGINS = environment.texts("CSRF_TRUSTED_ORIGINS", default=[])
# Number of reverse proxies in front of the shop. The shop takes the IP address of a client from the X-Forwarded-For
# header of these proxies, or from the connection if there are 0. By this address it limits password guesses, sign-ups,
# guests and visitors of the lab.
NUM_PROXIES = environment.integer("NUM_PROXIES", default=0, minimum=0, maximum=100)
# Set this if a proxy serves the shop only by HTTPS and sets the headers X-Forwarded-Proto, -Host and -For. Cookies are
# then sent only by HTTPS, plain HTTP is redirected, HSTS is on, and NUM_PROXIES is at least 1.
HTTPS = environment.boolean("HTTPS", default=False)
# Other origins of product pictures, such as https://pictures.example, separated by commas.
PICTURE_ORIGINS = environment.origins("PICTURE_ORIGINS", default=[])
# Web page of the code's repository, such as https://git.example/shop. All pages link to it. If empty, there is no link.
REPOSITORY_URL = environment.web_address("REPOSITORY_URL", default="")
# Number of threads in a web process.
WEB_THREADS = environment.integer("WEB_THREADS", default=16, minimum=1, maximum=1000)
# Number of web processes.
WEB_PROCESSES = environment.integer("WEB_PROCESSES", default=2, minimum=1, maximum=1000)
# Maximum number of open client connections of a web process, including idle ones. Further clients wait.
WEB_CONNECTIONS = environment.integer("WEB_CONNECTIONS", default=8192, minimum=1)
# Number of connections to Postgres that the threads of a web process share. Waiting for a connection is cheaper than
# waiting for a row lock: with 4 for 16 threads the shop sells more, and the slowest responses take less than half the
# time.
WEB_DATABASE_CONNECTIONS = environment.integer("WEB_DATABASE_CONNECTIONS", default=4, minimum=1, maximum=1000)
# Size of the connection pool of a process; 0 for no pool. `manage.py serve` sets it. Commands use one connection at a
# time, and Celery closes a pool after every task, so they need no pool.
DATABASE_POOL = environment.integer("DATABASE_POOL", default=0, minimum=0, maximum=1000)
# Set this if the shop reaches Postgres through a pooler such as PgBouncer (transaction or session mode). The shop then
# works without a Postgres session of its own: it prepares no statements, and `session-lock`, `insert-lock` and
# `lock-table` cannot be chosen. Set the time limits on the database role of the web servers; `manage.py serve` checks
# them.
DATABASE_POOLER = environment.boolean("DATABASE_POOLER", default=False)
if DATABASE_POOLER and DATABASE_IS_OURS:
    raise ImproperlyConfigured("DATABASE_POOLER needs DATABASE_URL: the project's own Postgres has no pooler.")

# Lab

# Serve the lab: flawed and sound ways of taking stock, on separate tables.
LAB_ENABLED = environment.boolean("LAB_ENABLED", default=False)
if LAB_ENABLED and DATABASE_POOLER:
    raise ImproperlyConfigured("LAB_ENABLED needs a Postgres without DATABASE_POOLER: its sandboxes rely on sessions.")
# Number of schedules of the lab that can run at the same time, each with its own Redis and Postgres database.
LAB_SANDBOXES = environment.integer("LAB_SANDBOXES", default=2, minimum=1, maximum=1000)

# Orders

# Default currency of new sales and of reported payments: a code of ISO 4217.
CURRENCY = environment.currency("CURRENCY", default="EUR")
# Seconds in which an order must be paid.
ORDER_TTL = environment.integer("ORDER_TTL", default=900, minimum=1, maximum=environment.YEAR)
# Maximum number of order requests of a customer in a second.
ORDER_RATE = environment.integer("ORDER_RATE", default=10, minimum=1)
# Seconds for which a web process caches a sale.
OFFER_TTL = environment.seconds("OFFER_TTL", default=1.0, minimum=0)
# Seconds for which a web process refuses orders for a sold-out sku before it checks the stock again.
SOLD_OUT_TTL = environment.seconds("SOLD_OUT_TTL", default=0.25, minimum=0)
# Seconds before the opening of a sale at which its stock is loaded (preheated).
PREHEAT_LEAD = environment.seconds("PREHEAT_LEAD", default=60.0, minimum=0)
# Seconds after which units that are reserved for an unsaved order are released. It must be longer than any request.
RECONCILE_GRACE = environment.seconds("RECONCILE_GRACE", default=60.0, minimum=0)

# Accounts

# Maximum number of wrong passwords for one account within 15 minutes. Then log-ins to it get status 429. An IP address
# from which the account has logged in within 7 days has its own count.
GUESSES_PER_ACCOUNT = environment.integer("GUESSES_PER_ACCOUNT", default=10, minimum=1)
# Maximum number of wrong passwords from one IP address within 15 minutes, for all accounts together.
GUESSES_PER_ADDRESS = environment.integer("GUESSES_PER_ADDRESS", default=100, minimum=1)
# Maximum number of sign-ups from one IP address within a minute, guests included. Further sign-ups get status 429.
SIGN_UPS_PER_ADDRESS = environment.integer("SIGN_UPS_PER_ADDRESS", default=20, minimum=1)
# Seconds for which an access token is valid. Until then it can place orders and enter waiting rooms, even after
# its user has signed out everywhere or changed the password.
ACCESS_TOKEN_TTL = environment.integer("ACCESS_TOKEN_TTL", default=900, minimum=1, maximum=environment.YEAR)

# Mails

# Mail server: smtp+tls://user:password@host:587 or smtp+ssl://user:password@host:465. The default prints mails.
globals().update(environment.email("EMAIL_URL", default="consolemail://"))
# Sender of the mails to customers.
DEFAULT_FROM_EMAIL = environment.text("DEFAULT_FROM_EMAIL", default="shop@localhost")
# Origin of links in mails: https://shop.example. If empty, they lead to the host in the request, which can be forged.
PUBLIC_URL = environment.origin("PUBLIC_URL", default="")
# Seconds that a thread waits for the mail server.
EMAIL_TIMEOUT = 10

# Strategies

# Seconds after which a stock lock expires if its holder has died. A holder that is alive renews it.
STOCK_LOCK_TTL = environment.seconds("STOCK_LOCK_TTL", default=3.0, minimum=0.1, maximum=LONGEST_SECONDS)
# Seconds that an order waits for a stock lock. After that the client gets status 503.
STOCK_LOCK_WAIT = environment.seconds("STOCK_LOCK_WAIT", default=5.0, minimum=0, maximum=LONGEST_SECONDS)
# Number of segments into which `segmented-lock` and `segmented-redis` split the stock of a sku. The same number of
# orders for the sku can run at the same time. To change it during a sale, restart the web processes one by one, then
# preheat the sale again.
STOCK_SEGMENTS = environment.integer("STOCK_SEGMENTS", default=5, minimum=1, maximum=1000)
# Allow `lua-queue` although Redis may lose keys by eviction or a restart (`maxmemory-policy`, `appendonly`). Queued
# orders may then be lost, although their customers got status 202. Without this setting, a sale with `lua-queue` is not
# preheated in such a Redis.
QUEUED_ORDERS_MAY_BE_LOST = environment.boolean("QUEUED_ORDERS_MAY_BE_LOST", default=False)
# The strategies `redlock`, `etcd-lock`, `zookeeper-lock` and `file-lock` need the following settings. A sale can choose
# such a strategy only if the setting of the strategy is not empty.
# Independent servers for `redlock`, separated by commas: redis://one:6379/0,redis://two:6379/0,redis://three:6379/0
REDLOCK_URLS = environment.redis_urls("REDLOCK_URLS", default=[])
# Server of the strategy `etcd-lock`: http://host:2379
ETCD_URL: Any = environment.text("ETCD_URL")
# Servers of the strategy `zookeeper-lock`, separated by commas, and the path of the locks: host:2181,host:2181/path
ZOOKEEPER_HOSTS = environment.text("ZOOKEEPER_HOSTS")
# Folder of the strategy `file-lock`, which works for a shop on one machine. No other program may delete files in this
# folder. It is created if its parent exists. The default is in the run folder if Postgres is the project's own, and
# empty otherwise.
LOCK_FOLDER = environment.text("LOCK_FOLDER") or (str(RUN_FOLDER.path / "locks") if DATABASE_IS_OURS else "")

# Metrics

# Count what web servers, workers and beat do, for Prometheus, at `/metrics`.
METRICS = environment.boolean("METRICS", default=True)
# Token to read `/metrics` from other machines. If empty, only this machine can read it.
METRICS_TOKEN = environment.text("METRICS_TOKEN")
# Folder in which the processes of this machine store their metrics. It is created if its parent exists. The default is
# in the run folder.
METRICS_FOLDER = environment.text("METRICS_FOLDER") or str(RUN_FOLDER.path / "metrics")

# Send traces of orders to the OpenTelemetry collector at OTEL_EXPORTER_OTLP_ENDPOINT. This needs the packages in
# requirements-trace.txt.
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
# Middleware for URLs below /api/, which have no sessions and no forms. docs/performance.md says how much CPU time the
# shorter list saves.
API_MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "shop.runtime.csp.ContentSecurityPolicy",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "shop.pages.error_pages.NotNowMiddleware",
]
# Do not redirect to URLs with a slash: a redirect would turn a POST to /api/orders into a GET of the list of orders.
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
    # Let Postgres prepare repeated statements, and send the values separately.
    "server_side_binding": True,
    "prepare_threshold": None if DATABASE_POOLER else 3,
    # Open all connections at the start, not in the first second of a sale. `timeout` is the time in seconds that a
    # request waits for a connection. After that the client gets status 503.
    "pool": {
        "min_size": DATABASE_POOL,
        "max_size": DATABASE_POOL,
        "timeout": limits.POSTGRES_POOL,
        "connection_class": postgres.BoundedConnection,
    }
    if DATABASE_POOL
    else False,
}

# Behind a pooler, use no server-side cursors: the next statement may reach a connection without that cursor.
DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = DATABASE_POOLER

if DATABASE_POOL and not DATABASE_POOLER:
    # When one of these time limits ends a statement, the client gets 503. `options` in DATABASE_URL override a limit.
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
        # Do not retry: a script without a response may have run. Only its caller knows how to repeat it safely.
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

CELERY_BROKER_URL = environment.broker_url(REDIS_LOCATION)
# Verify the certificate of the server, as the cache does. By default Celery sends the password to any server.
if CELERY_BROKER_URL.startswith("rediss://") and "?" not in CELERY_BROKER_URL:
    CELERY_BROKER_USE_SSL = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# Let the worker connect again when Redis refuses a write, for example because it is full. By default the worker exits.
CELERY_BROKER_CHANNEL_ERROR_RETRY = True
CELERY_WORKER_CONSUMER = "shop.runtime.broker:QuietConsumer"
CELERY_BEAT_SCHEDULER = "shop.runtime.broker:QuietScheduler"
CELERY_TASK_IGNORE_RESULT = True
# Tasks that save orders have their own queue, so that the tasks of beat do not wait behind them: a worker takes tasks
# from both queues in turn. It fetches only as many tasks as it has free threads.
CELERY_TASK_QUEUES: dict[str, dict[str, str]] = {"celery": {}, "saving": {}}
CELERY_TASK_ROUTES = {"shop.runtime.tasks.save_queued_orders": {"queue": "saving"}}
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BEAT_SCHEDULE = {
    "expire-unpaid-orders": {
        "task": "shop.runtime.tasks.expire_unpaid_orders",
        "schedule": timedelta(seconds=10),
        # Drop a task that no worker has started within a minute, because a later task does the same. A shorter time
        # would drop all tasks if the clock of beat is some seconds behind the clock of the worker.
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
    "analyze-tables": {
        "task": "shop.runtime.tasks.analyze_tables",
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
    # Health checks reach the web server directly by plain HTTP, not through the proxy.
    SECURE_REDIRECT_EXEMPT = [r"^health"]
    SECURE_HSTS_SECONDS = 31_536_000
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = LANGUAGE_COOKIE_SECURE = True
# These two checks demand HSTS for subdomains and in the browsers' preload lists. That would affect hosts outside the
# shop, so the owner of the domain has to decide.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

# The web server refuses longer bodies. There are no uploads, so Django needs no handler that writes files.
DATA_UPLOAD_MAX_MEMORY_SIZE = limits.BODY_BYTES
FILE_UPLOAD_HANDLERS: list[str] = []
# View for a form whose CSRF token does not belong to this browser.
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
# The pages of accounts are those of django-allauth. Its authentication backend is not used, so that every password is
# checked by `GuardedBackend`.
SESSION_ENGINE = "shop.accounts.sessions"
AUTHENTICATION_BACKENDS = ["shop.accounts.guesses.GuardedBackend"]
PASSWORD_HASHERS = ["shop.accounts.hashers.PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "shop.accounts.passwords.LongEnough"},
    {"NAME": "shop.accounts.passwords.NotCommon"},
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
# A log-in needs a confirmed e-mail address. A sign-up does not reveal whether the address has an account,
# but a log-in after the sign-up does. So SIGN_UPS_PER_ADDRESS limits sign-ups.
ACCOUNT_EMAIL_VERIFICATION = "mandatory"
# An account has one e-mail address. When a new address is confirmed, it replaces the old address. The shop then sends a
# notice to the old address.
ACCOUNT_CHANGE_EMAIL = True
ACCOUNT_EMAIL_NOTIFICATIONS = True
# Demand the password again before the e-mail address is changed.
ACCOUNT_REAUTHENTICATION_REQUIRED = True
ACCOUNT_REAUTHENTICATION_METHODS = {"password"}
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
ACCOUNT_EMAIL_CONFIRMATION_AUTHENTICATED_REDIRECT_URL = "account"
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_LOGOUT_REDIRECT_URL = "home"
ACCOUNT_DEFAULT_HTTP_PROTOCOL = "https" if HTTPS else "http"
# Disable allauth's limits on log-ins: GUESSES_PER_ACCOUNT and GUESSES_PER_ADDRESS limit them. Keep its other limits.
ACCOUNT_RATE_LIMITS = {"login": None, "login_failed": None, "signup": f"{SIGN_UPS_PER_ADDRESS}/m/ip"}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en"
# Languages of the storefront. Its views choose the language; no middleware does, so the API always uses English.
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
    # The blue of the storefront.
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

# Format of the log of web servers, workers and beat: `text`, or `json` for one JSON object per line.
LOG_FORMAT = environment.choice("LOG_FORMAT", default="text", choices=("text", "json"))
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "text": {"()": "shop.runtime.logs.TextFormatter"},
        "json": {"()": "shop.runtime.logs.JsonFormatter"},
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT}},
    # Do not log each refused request: there may be ten thousand per second. If an operator must act because of a 503,
    # the code that sends the 503 logs a line.
    "filters": {
        "not_refused": {
            "()": "django.utils.log.CallbackFilter",
            "callback": lambda record: getattr(record, "status_code", 0) != 503,
        }
    },
    "loggers": {
        "django.request": {"level": "ERROR", "filters": ["not_refused"]},
        # Do not log mistakes of clients: they see them in the response, and tracebacks would let anyone fill the disk.
        "django.security": {"level": "CRITICAL"},
        # While Redis is full, this logger would write a warning with a traceback each second.
        "kombu.transport.redis": {"level": "ERROR"},
    },
    # LOG_LEVEL: DEBUG, INFO, WARNING, ERROR or CRITICAL.
    "root": {"handlers": ["console"], "level": environment.log_level("LOG_LEVEL", default="WARNING")},
}
