"""docker-compose.yml is checked against the Compose specification, the settings, and the programs that it runs."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
import yaml
from django.core.exceptions import ImproperlyConfigured
from django.urls import resolve

from servers import postgres, valkey
from shop import limits
from tests.http_server import serving

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
SECRETS = {"SECRET_KEY": "k" * 64, "POSTGRES_PASSWORD": "sampleOfAPassword", "VALKEY_PASSWORD": "sampleOfAnother"}
# Compose itself sets these variables.
PROJECT = {"COMPOSE_PROJECT_NAME": "last-unit"}
SHOP = ("web", "worker", "beat", "migrate", "locust-master", "locust-worker")
# Settings that the Compose file must not set: `manage.py serve` sets the pool, and DEBUG would show tracebacks.
NOT_OFFERED = {"DEBUG", "DATABASE_POOL", "LOCK_FOLDER"}
# Variables that OpenTelemetry reads and the settings do not, with their defaults.
OF_OPENTELEMETRY = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318",
    "OTEL_SERVICE_NAME": "last-unit",
    "OTEL_TRACES_SAMPLER": "parentbased_always_on",
    "OTEL_TRACES_SAMPLER_ARG": "1.0",
}
VARIABLE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?:(?P<operator>:[-?])(?P<text>[^{}]*))?\}|(?P<wrong>))")


@cache
def written() -> str:
    return json.dumps(yaml.safe_load((ROOT / "docker-compose.yml").read_text()))


def load() -> dict[str, Any]:
    """Return a new copy of the Compose file, with anchors resolved, that a test may change."""
    return json.loads(written())  # Parsing YAML takes ten times as long as parsing JSON.


def substitute(node: Any, variables: Mapping[str, str]) -> Any:
    """Substitute variables as Compose does.

    Raises:
        KeyError: a required variable is missing.
    """

    def value(match: re.Match[str]) -> str:
        assert match["wrong"] is None, f"a lone $ before {match.string[match.end() :][:40]}"
        if match["escaped"]:
            return "$"
        return variables.get(match["name"], match["text"]) if match["operator"] == ":-" else variables[match["name"]]

    return json.loads(VARIABLE.sub(value, json.dumps(node)))


def rendered(variables: Mapping[str, str] = SECRETS) -> dict[str, Any]:
    """Return the services as Compose starts them. A variable without a value in the file gets it from `variables`."""
    services = substitute(load()["services"], {**variables, **PROJECT})
    for service in services.values():
        given = service.get("environment", {})
        passed_on = {name: value if value is not None else variables.get(name) for name, value in given.items()}
        service["environment"] = {name: value for name, value in passed_on.items() if value is not None}
    return services


def taken(compose: dict[str, Any]) -> dict[str, str | None]:
    """Return the variables in the file with their defaults. A required variable has None."""
    found: dict[str, str | None] = {}
    for match in VARIABLE.finditer(json.dumps(compose)):
        if match["name"]:
            found[match["name"]] = match["text"] if match["operator"] == ":-" else None
    for service in compose["services"].values():
        known = read() | OF_OPENTELEMETRY
        found |= {name: known[name] for name, value in service.get("environment", {}).items() if value is None}
    return {name: default for name, default in found.items() if name not in PROJECT}


@cache
def read() -> dict[str, str]:
    """Return the variables that the settings read, with their defaults as written in an .env file."""
    found = {}
    for node in ast.walk(ast.parse((ROOT / "shop/runtime/settings.py").read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name("environment")),
                args=[ast.Constant(str(name))],
                keywords=keywords,
            ):
                defaults = [keyword.value for keyword in keywords if keyword.arg == "default"]
                found[name] = as_written(defaults[0]) if defaults else ""
    return found


def as_written(default: ast.expr) -> str:
    if isinstance(default, ast.Name):
        return default.id
    value = ast.literal_eval(default)
    return ",".join(value) if isinstance(value, list) else str(value).lower() if isinstance(value, bool) else str(value)


def unread(compose: dict[str, Any]) -> set[str]:
    """Return the variables of the shop's services that no setting reads."""
    taken = {name for service in SHOP for name in compose["services"][service]["environment"]}
    return taken - set(read() | OF_OPENTELEMETRY)


def environment(service: str) -> dict[str, str]:
    return rendered()[service]["environment"]


def run(code: str, *, service: str) -> subprocess.CompletedProcess[str]:
    """Run Python with only the environment of a service."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, env=environment(service), capture_output=True, text=True, timeout=60)


@cache
def settings() -> dict[str, Any]:
    """Return the settings of the shop's services, which have one environment."""
    return evaluated()


def evaluated(**changed: str | None) -> dict[str, Any]:
    """Evaluate the settings with only the environment of a service. `changed` replaces variables; None removes one."""
    given = {name: value for name, value in {**environment("web"), **changed}.items() if value is not None}
    with patch.dict(os.environ, given, clear=True):
        return runpy.run_path(str(ROOT / "shop/runtime/settings.py"))


def errors(compose: dict[str, Any]) -> list[str]:
    # Import these here: every worker of the test run imports this file, and only one worker runs its tests.
    from check_jsonschema.builtin_schemas import get_builtin_schema
    from jsonschema import Draft202012Validator

    schema = get_builtin_schema("vendor.compose-spec")
    return [error.message for error in Draft202012Validator(schema).iter_errors(compose)]


def unmet(compose: dict[str, Any]) -> list[str]:
    """Return the dependencies between services that can never be satisfied."""
    services = compose["services"]
    found = []
    for name, service in services.items():
        for needed, wanted in service.get("depends_on", {}).items():
            other = services.get(needed)
            met = other is not None and {
                "service_started": True,
                "service_healthy": "test" in other.get("healthcheck", {}),
                "service_completed_successfully": other.get("restart") == "no",
            }.get(wanted["condition"], False)
            if not met or not set(other.get("profiles", [])) <= set(service.get("profiles", [])):
                found.append(f"{name} -> {needed}")
    return found


def literal_secrets(compose: dict[str, Any]) -> list[str]:
    """Return variables named as secrets, and passwords in URLs, that do not come from a required variable."""
    found = []
    for service, values in compose["services"].items():
        for name, value in values.get("environment", {}).items():
            password = re.search(r"://[^:@/]*:(.+)@", value or "")
            secret = value if re.search("SECRET|PASSWORD|TOKEN|KEY", name) else password and password[1]
            if secret and not re.fullmatch(r"\$\{(SECRET_KEY|POSTGRES_PASSWORD|VALKEY_PASSWORD):\?[^{}]+\}", secret):
                found.append(f"{service}: {name}")
    return found


HARDENED: dict[str, Any] = {
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
    "logging": {"driver": "local"},
}
MOUNTED = {
    "./nginx.conf:/etc/nginx/nginx.conf:ro",
    "./shop/runtime/refusals:/etc/nginx/refusals:ro",
    "./observe/prometheus.yml:/etc/prometheus/prometheus.yml:ro",
    "./observe/alerts.yml:/etc/prometheus/alerts.yml:ro",
    "./observe/grafana/datasource.yml:/etc/grafana/provisioning/datasources/shop.yml:ro",
    "./observe/grafana/dashboards.yml:/etc/grafana/provisioning/dashboards/shop.yml:ro",
    "./observe/grafana/dashboard.json:/etc/grafana/dashboards/shop.json:ro",
}
"""The only files and folders of the repository that containers may mount."""


def soft(compose: dict[str, Any]) -> list[str]:
    """Return the unneeded privileges and missing limits of each service."""
    found = []
    for name, service in compose["services"].items():
        found += [f"{name}: {key}" for key, value in HARDENED.items() if service.get(key) != value]
        found += [f"{name}: no {limit}" for limit in ("mem_limit", "pids_limit") if limit not in service]
        found += [f"{name}: {key}" for key in ("cap_add", "privileged", "network_mode", "pid") if key in service]
        # Services with `build` are exempt, because the shop's image sets its own user.
        if "build" not in service and service.get("user", "root") in ("root", "0", "0:0"):
            found.append(f"{name}: root")
        mounted = [str(volume) for volume in service.get("volumes", [])]
        found += [f"{name}: {volume}" for volume in mounted if re.match(r"[/.~]", volume) and volume not in MOUNTED]
    return found


Check = Callable[[dict[str, Any]], Collection[str]]
CHECKS: tuple[Check, ...] = (errors, unread, unmet, literal_secrets, soft)
NO_HEALTH_CHECK = ["web -> valkey", "worker -> valkey", "beat -> valkey"]
NO_END = ["web -> migrate", "worker -> migrate", "beat -> migrate"]
DATABASE_URL = "postgres://last_unit:hunter2@postgres:5432/last_unit"
SOCKET = "/var/run/docker.sock:/var/run/docker.sock"
FAULTS: list[tuple[Check, str, dict[str, Any], Collection[str]]] = [
    (errors, "web", {"restrat": "always"}, ["Unevaluated properties are not allowed ('restrat' was unexpected)"]),
    (unread, "worker", {"environment": {"REDIS_ULR": "redis://valkey"}}, {"REDIS_ULR"}),
    (unmet, "valkey", {"healthcheck": {}}, NO_HEALTH_CHECK),
    (unmet, "migrate", {"restart": "unless-stopped"}, NO_END),
    (unmet, "migrate", {"depends_on": {"pstgres": {"condition": "service_started"}}}, ["migrate -> pstgres"]),
    (unmet, "web", {"profiles": ["sale"]}, ["proxy -> web", "locust-master -> web"]),
    (literal_secrets, "beat", {"environment": {"SECRET_KEY": "hunter2"}}, ["beat: SECRET_KEY"]),
    (literal_secrets, "beat", {"environment": {"SECRET_KEY": "${SECRET_KEY:-hunter2}"}}, ["beat: SECRET_KEY"]),
    (literal_secrets, "beat", {"environment": {"DATABASE_URL": DATABASE_URL}}, ["beat: DATABASE_URL"]),
    (soft, "valkey", {"cap_drop": [], "privileged": True}, ["valkey: cap_drop", "valkey: privileged"]),
    (soft, "valkey", {"user": "root"}, ["valkey: root"]),
    (soft, "valkey", {"volumes": [SOCKET]}, [f"valkey: {SOCKET}"]),
]
"""Faults as negative controls: the check that finds it, the service, the change, and the findings."""


def test_the_file_has_no_fault() -> None:
    compose = load()
    assert [(check.__name__, found) for check in CHECKS if (found := check(compose))] == []
    assert errors({**compose, "services": rendered()}) == []


@pytest.mark.parametrize(("check", "service", "change", "found"), FAULTS)
def test_a_fault_would_be_found(check: Check, service: str, change: dict[str, Any], found: Collection[str]) -> None:
    compose = load()
    compose["services"][service].update(change)
    assert check(compose) == found


def test_our_services_are_those_that_are_built_here_and_only_beat_cannot_be_scaled() -> None:
    services = load()["services"]
    assert {name for name, service in services.items() if "build" in service} == set(SHOP)
    assert {services[name].get("image") for name in SHOP} == {None}, "builds of one name, run in parallel, fail"
    assert set(services) == {*SHOP, "proxy", "postgres", "valkey", "prometheus", "grafana"}
    assert {name for name, service in services.items() if service.get("profiles") == ["load"]} == {
        "locust-master",
        "locust-worker",
    }
    named = {name: each["container_name"] for name, each in rendered().items() if "container_name" in each}
    assert named == {"beat": "last-unit-beat"}
    assert "ports" not in services["locust-worker"]
    assert [service for service in SHOP if environment(service) != environment("web")] == []


def test_every_setting_can_be_set_and_those_without_a_default_are() -> None:
    assert set(load()["services"]["web"]["environment"]) == set(read() | OF_OPENTELEMETRY) - NOT_OFFERED
    optional = {
        *("CSRF_TRUSTED_ORIGINS", "PICTURE_ORIGINS", "REPOSITORY_URL", "PUBLIC_URL", "PAYMENT_SECRET", "PAYMENT_PAGE"),
        *("REDLOCK_URLS", "ETCD_URL", "ZOOKEEPER_HOSTS", "LOCK_FOLDER", "METRICS_FOLDER", "METRICS_TOKEN"),
    }
    required = {name for name, default in read().items() if default == ""} - optional
    assert required == {"DATABASE_URL", "REDIS_URL", "SECRET_KEY"}
    assert {name for name in required if environment("web").get(name)} == required


def test_the_settings_name_the_servers_of_the_file() -> None:
    loaded, database_server = settings(), rendered()["postgres"]["environment"]
    database = loaded["DATABASES"]["default"]
    assert (database["HOST"], database["PORT"]) == ("postgres", 5432)
    assert database["USER"] == database_server["POSTGRES_USER"]
    assert database["PASSWORD"] == database_server["POSTGRES_PASSWORD"] == SECRETS["POSTGRES_PASSWORD"]
    assert database["NAME"] == database_server["POSTGRES_DB"]
    assert loaded["CACHES"]["default"]["LOCATION"] == loaded["CELERY_BROKER_URL"]
    assert loaded["CELERY_BROKER_URL"] == "redis://:sampleOfAnother@valkey:6379/0"
    assert loaded["SECRET_KEY"] == SECRETS["SECRET_KEY"]
    assert (loaded["LAB_ENABLED"], loaded["DEBUG"]) == (False, False)
    assert database["OPTIONS"]["pool"] is False, "the web server makes one"
    with pytest.raises(ImproperlyConfigured, match="Set SECRET_KEY"):
        evaluated(SECRET_KEY=None)


def test_there_is_one_network_and_data_is_in_named_volumes_or_in_memory() -> None:
    compose = load()
    services = compose["services"]
    assert {name for name, service in services.items() if "/tmp" not in service["tmpfs"]} == set()  # noqa: S108
    assert "/var/run/postgresql" in services["postgres"]["tmpfs"], "the socket of Postgres"
    assert list(compose["networks"]) == ["shop"]
    assert {name for name, service in compose["services"].items() if service["networks"] != ["shop"]} == set()
    assert compose["services"]["postgres"]["volumes"] == ["postgres:/var/lib/postgresql"]
    assert compose["services"]["valkey"]["volumes"] == ["valkey:/data"]
    assert [compose["services"][name]["volumes"] for name in SHOP] == [["metrics:/metrics"]] * len(SHOP)
    assert set(compose["volumes"]) == {"postgres", "valkey", "metrics", "prometheus"}


def commands() -> list[str]:
    """Return the commands and health checks of the shop's services. `tests/docs/test_commands.py` checks them, too."""
    return [*(rendered()[service]["command"] for service in SHOP), rendered()["worker"]["healthcheck"]["test"][1]]


def test_a_service_runs_what_is_installed_asks_the_worker_that_it_checks_and_has_enough_connections() -> None:
    services, loaded = rendered(), settings()
    accepted = int(re.fullmatch(r"max_connections=(\d+)", services["postgres"]["command"][-1])[1])
    # Assume ten replicas, and two connections per request: a lock in Postgres takes a connection of its own.
    assert 2 * 10 * loaded["WEB_PROCESSES"] * loaded["WEB_DATABASE_CONNECTIONS"] <= accepted - 50
    assert [name for name in (command.split()[0] for command in commands()) if not (BIN / name).exists()] == []
    assert rendered()["worker"]["healthcheck"]["test"][0] == "CMD-SHELL"
    assert "--destination celery@$HOSTNAME" in commands()[-1]


@pytest.mark.parametrize(("service", "address"), [("web", "127.0.0.1:8000"), ("locust-master", "127.0.0.1:8089")])
@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_a_health_check_over_http_believes_answers(service: str, address: str, *, status: int, healthy: bool) -> None:
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

    kind, python, option, code = rendered()[service]["healthcheck"]["test"]
    with serving(Answer) as port:
        done = run(code.replace(address, f"127.0.0.1:{port}"), service=service)
    assert (kind, python, option) == ("CMD", "python", "-c")
    assert asked == [{"web": "/health/", "locust-master": "/"}[service]]
    assert (done.returncode == 0) is healthy


def test_the_web_answers_to_the_names_that_the_file_calls_it_by() -> None:
    services, hosts = rendered(), settings()["ALLOWED_HOSTS"]
    load_goes_to = urlsplit(shlex.split(services["locust-master"]["command"])[-1])
    arguments = shlex.split(services["web"]["command"])
    assert (load_goes_to.hostname, load_goes_to.port) == ("web", 8000)
    assert arguments[-4:] == ["--host", "0.0.0.0", "--port", "8000"]  # noqa: S104 - inside a container
    assert hosts == ["web", "127.0.0.1", "localhost"]
    assert resolve("/health/").view_name == "health"


def test_the_servers_keep_what_the_projects_own_servers_keep() -> None:
    services = rendered()
    options = services["valkey"]["command"][1:]
    sorts = ("--encoding", "--locale", "--builtin-locale")
    given = dict(zip(options[::2], options[1::2], strict=True))
    kept = ("appendonly", "appendfsync", "save", "maxmemory-policy")
    own = {"--maxmemory": "512mb", "--requirepass": SECRETS["VALKEY_PASSWORD"]}
    assert given == {f"--{name}": valkey.SETTINGS[name] for name in kept} | own
    assert services["valkey"]["environment"] == {"VALKEYCLI_AUTH": SECRETS["VALKEY_PASSWORD"]}
    assert set(services["postgres"]["environment"]["POSTGRES_INITDB_ARGS"].split()) == {
        option for option in postgres.INITDB if option.startswith(sorts)
    }


def test_the_example_names_and_explains_what_the_file_takes_and_shows_each_default() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    named = [match.groups() for line in lines if (match := re.fullmatch(r"(# )?([A-Z_]+)=(.*)", line))]
    wanted = taken(load())
    assert len(named) == len(wanted)
    assert {name: value for optional, name, value in named if optional} == {
        name: default for name, default in wanted.items() if default is not None
    }
    assert {name: value for optional, name, value in named if not optional} == dict.fromkeys(SECRETS, "")
    assert {name for name, default in wanted.items() if default is None} == set(SECRETS)
    variables = [number for number, line in enumerate(lines) if re.match(r"(# )?[A-Z_]+=", line)]
    assert [lines[number] for number in variables if not re.match(r"# [A-Z].* ", lines[number - 1])] == []


def test_the_image_holds_no_secrets_and_is_not_run_by_root() -> None:
    instructions = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text()).splitlines()
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    assert [line for line in instructions if line.startswith("USER")] == ["USER 10001:10001"] * 2
    assert [line for line in instructions if re.search("secret|password", line, re.IGNORECASE)] == []
    assert len([line for line in instructions if "pip install" in line and "--require-hashes" in line]) == 2
    assert {".env", ".git", ".venv", "tests"} <= set(ignored)
    needed = "manage.py requirements.txt requirements-image.txt shop inventory locking lab loadtest servers"
    assert set(needed.split()).isdisjoint(ignored)


PINNED = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")


def unpinned(compose: dict[str, Any], dockerfile: str) -> set[str]:
    """Return the third-party images that are named without a digest."""
    used = {str(service["image"]) for service in compose["services"].values() if "build" not in service}
    stages = re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE)
    bases = set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) - set(stages)
    return {image for image in used | bases if not PINNED.fullmatch(image)}


def test_each_image_has_a_digest_so_that_nobody_can_replace_it() -> None:
    """Dependabot finds updates by the tag."""
    compose, dockerfile = load(), (ROOT / "Dockerfile").read_text()
    assert unpinned(compose, dockerfile) == set()
    compose["services"]["postgres"]["image"] = "postgres:18"
    assert unpinned(compose, re.sub("@sha256:[0-9a-f]+", "", dockerfile)) == {"postgres:18", "python:3.13-slim"}


def test_customers_reach_the_web_server_only_through_the_proxy_and_it_ends_their_requests() -> None:
    services = rendered()
    pages = {"prometheus": ["127.0.0.1:9090:9090"], "grafana": ["127.0.0.1:3000:3000"]}
    assert {name for name, service in services.items() if "ports" in service} == {"proxy", "locust-master", *pages}
    assert {name: services[name]["ports"] for name in pages} == pages, "for this machine alone: they have no login"
    assert services["proxy"]["ports"] == ["127.0.0.1:8000:8080"]
    assert services["web"]["environment"]["NUM_PROXIES"] == "1"
    assert services["web"]["stop_grace_period"] == "1m"
    assert limits.STOP < 60
