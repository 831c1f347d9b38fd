"""The alerts in observe/ fire when they should, and the dashboard uses existing metrics. promtool evaluates them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from shop.metrics import definitions
from shop.metrics.definitions import HistogramOf
from tests.docs.pages import PAGES, leads_to, moved, plain
from tests.test_compose import load

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
OBSERVE = ROOT / "observe"
PROMTOOL = shutil.which("promtool")
ALERTS = yaml.safe_load((OBSERVE / "alerts.yml").read_text())
DASHBOARD = json.loads((OBSERVE / "grafana" / "dashboard.json").read_text())

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None and not os.environ.get("CI"),
    reason="promtool is not installed; on Debian: apt-get install prometheus",
)


def rules() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def promtool(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None, "install Debian's package prometheus"
    return subprocess.run([PROMTOOL, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def assert_valid(folder: Path, *arguments: str) -> None:
    checked = promtool(folder, "check", *arguments)
    assert checked.returncode == 0, checked.stderr


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for file in ("alerts.yml", "alerts_test.yml"):
        shutil.copy(OBSERVE / file, tmp_path)
    return tmp_path


@needs_promtool
def test_each_alert_fires_when_it_should_and_not_before(copied: Path) -> None:
    assert_valid(copied, "rules", "alerts.yml")
    tested = promtool(copied, "test", "rules", "alerts_test.yml")
    assert (tested.returncode, tested.stderr) == (0, ""), tested.stderr


@needs_promtool
def test_an_alert_that_never_or_always_fires_would_be_found(copied: Path) -> None:
    """Negative control: an alert that never fires, or always fires, fails the tests. So each alert has a test."""
    changed = [{**rule, "expr": f"({rule['expr']}) and vector(0) > 1"} for rule in rules()]
    changed[1] |= {"expr": "vector(0)", "for": "0s"}
    (copied / "alerts.yml").write_text(yaml.safe_dump({"groups": [{"name": "shop", "rules": changed}]}))
    tested = promtool(copied, "test", "rules", "alerts_test.yml")
    assert tested.returncode != 0
    assert [rule["alert"] for rule in rules() if f"alertname: {rule['alert']}," not in tested.stderr] == []
    assert 'ALERTS{alertstate=\\"firing\\"}' in tested.stderr


@needs_promtool
def test_prometheus_reads_its_configuration(tmp_path: Path) -> None:
    configuration = (OBSERVE / "prometheus.yml").read_text()
    for there, here in {"/etc/prometheus/": f"{tmp_path}/", "/tmp/metrics-token": f"{tmp_path}/token"}.items():  # noqa: S108
        assert there in configuration
        configuration = configuration.replace(there, here)
    (tmp_path / "prometheus.yml").write_text(configuration)
    (tmp_path / "token").write_text("secret")
    shutil.copy(OBSERVE / "alerts.yml", tmp_path)
    assert_valid(tmp_path, "config", "prometheus.yml")


@needs_promtool
def test_the_queries_of_the_dashboard_are_valid(tmp_path: Path) -> None:
    recorded = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "1m")}
        for number, query in enumerate(expressions())
    ]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": recorded}]}))
    assert_valid(tmp_path, "rules", "queries.yml")


def test_alerts_and_dashboard_use_metrics_and_labels_that_there_are() -> None:
    known = {metric.name: set(metric.labels) for metric in definitions.METRICS}
    series = {
        f"{metric.name}{ending}": {*metric.labels, *(["le"] if ending == "_bucket" else [])}
        for metric in definitions.METRICS
        if isinstance(metric, HistogramOf)
        for ending in ("_bucket", "_sum", "_count")
    }
    used: set[str] = set()
    for expression in expressions():
        names = set(re.findall(r"shop_\w+", expression))
        used |= {re.sub("_(bucket|sum|count)$", "", name) if name in series else name for name in names}
        labels = set(re.findall(r"[{,]\s*(\w+)\s*=", expression)) - {"job"}
        for grouped in re.findall(r"by \(([^)]*)\)", expression):
            labels |= set(re.split(r",\s*", grouped))
        allowed: set[str] = set()
        for name in names:
            allowed |= series.get(name) or known.get(name) or set()
        assert names <= series.keys() | known.keys(), expression
        assert labels <= allowed, expression
    assert used == known.keys(), "every metric is shown or watched"


def advice_elsewhere(pages: Mapping[str, str] = PAGES) -> list[str]:
    """Return the alerts whose advice is not in the section of the manual that they name."""
    noted = {rule["alert"]: rule["annotations"] for rule in rules()}
    return [name for name, each in noted.items() if plain(each["todo"]) not in plain(leads_to(each["where"], pages))]


def test_the_table_of_alerts_leads_to_the_section_of_each() -> None:
    """The row of each alert leads to its section, or to another page that has it, or it has the text of its advice."""
    rows = [row for row in PAGES["docs/incidents.md"].splitlines() if row.startswith("| ")]
    for rule in rules():
        (row,) = [row for row in rows if f"(`{rule['alert']}`)" in row]
        page, _, anchor = rule["annotations"]["where"].partition("#")
        link = f"#{anchor}" if page == "incidents.md" else page
        assert f"]({link}" in row or plain(rule["annotations"]["todo"]) in plain(row), row


@pytest.mark.parametrize(
    ("words", "others", "found"),
    [("start them again.", "restart them.", "ShopDown"), ("Choose the strategy by it.", "Choose one.", "OrdersSlow")],
)
def test_an_alert_names_the_section_that_says_what_to_do(words: str, others: str, found: str) -> None:
    """Negative control: advice in another section is found."""
    assert advice_elsewhere() == []
    assert advice_elsewhere(moved(words, others)) == [found]


def test_compose_gives_grafana_the_source_and_the_dashboard_that_it_names() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    services = load()["services"]
    assert {name for name, service in services.items() if service.get("profiles") == ["observe"]} == {
        "prometheus",
        "grafana",
    }
    source = yaml.safe_load((OBSERVE / "grafana" / "datasource.yml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"]}
    folder = yaml.safe_load((OBSERVE / "grafana" / "dashboards.yml").read_text())["providers"][0]["options"]["path"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert f"./observe/grafana/dashboard.json:{home}:ro" in services["grafana"]["volumes"]
    assert Path(home).parent == Path(folder)
