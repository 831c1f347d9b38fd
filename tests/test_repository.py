"""The files about working on the repository: workflows, hooks, commit rule, dev container, checklists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from pre_commit import clientlib

from tools import check_commit_subject, screenshots
from tools.check_wheels import LINUX, MACOS, SUPPORTED

ROOT = Path(__file__).resolve().parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
CHECK_SUBJECT = ROOT / "tools" / "check_commit_subject.py"


def parsed(file: Path) -> Any:
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    # PyYAML follows YAML 1.1 and reads the key `on` as true. GitHub follows YAML 1.2 and reads it as text.
    return {"on" if key is True else key: value for key, value in document.items()}


def errors(schema: str, document: Any) -> list[str]:
    """Return the errors that a schema of check-jsonschema finds in a document."""
    rules = get_builtin_schema(schema)
    kind = validator_for(rules, default=Draft202012Validator)
    return [f"{error.json_path}: {error.message}" for error in kind(rules).iter_errors(document)]


def jobs() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for file in WORKFLOWS:
        yield from parsed(file)["jobs"].items()


SCHEMAS = ("vendor.github-workflows", "custom.github-workflows-require-timeout")


@pytest.mark.parametrize(
    ("file", "schema"), [*product(WORKFLOWS, SCHEMAS), (GITHUB / "dependabot.yml", "vendor.dependabot")]
)
def test_a_file_follows_githubs_schema_and_a_workflow_limits_its_time(file: Path, schema: str) -> None:
    assert errors(schema, parsed(file)) == []


def test_every_action_is_pinned_to_a_commit_and_every_script_is_there() -> None:
    used = [step["uses"] for _, job in jobs() for step in job["steps"] if "uses" in step]
    assert used
    assert [name for name in used if not PINNED.fullmatch(name)] == []
    runs = [step["run"] for _, job in jobs() for step in job["steps"] if "run" in step]
    scripts = {word for run in runs for word in run.split() if word.startswith((".ci/", "tools/"))}
    assert scripts == {".ci/run", ".ci/nightly", "tools/check_wheels.py", "tools/check_commit_subject.py"}
    assert [name for name in scripts if not (ROOT / name).is_file()] == []


def test_ci_runs_on_every_supported_platform_and_python() -> None:
    ci = parsed(GITHUB / "workflows" / "ci.yml")["jobs"]
    linux, macos = (ci[name]["strategy"]["matrix"] for name in ("linux", "macos"))
    assert {platform.split("-")[0] for platform in SUPPORTED if "linux" in platform} == {
        each["name"].replace("x86-64", "x86_64").replace("arm64", "aarch64") for each in linux["architecture"]
    }
    assert (tuple(linux["python"]), tuple(macos["python"])) == (LINUX, MACOS)
    assert [step.get("run") for step in ci["linux"]["steps"]][-1] == ".ci/run"
    # Negative control of the schema: it refuses a job without a runner.
    del ci["linux"]["runs-on"]
    assert errors("vendor.github-workflows", {**parsed(GITHUB / "workflows" / "ci.yml"), "jobs": ci}) != []


LIMIT = "lab: " + "search further ".ljust(55, "x")


@pytest.mark.parametrize(
    ("subject", "what"),
    [
        ("locking: grant at once when a waiter has died", None),
        ("lab/site: say when a verdict was measured", None),
        (LIMIT, None),
        ("Merge branch 'main' into queue", None),
        ('Revert "lab: ignore a second signal during shutdown"', None),
        ("Locking: grant at once", "not `area: verb what`"),
        ("locking: Grant at once", "not `area: verb what`"),
        ("locking:grant at once", "not `area: verb what`"),
        ("foo/shop: bar baz", "the area foo is none of"),
        ("shopx: bar baz", "the area shopx is none of"),
        ("locking: grant at once.", "ends with a full stop"),
        (f"{LIMIT}x", "has 61 characters and may have 60"),
        ("fixup! locking: grant at once", "not `area: verb what`"),
        ("", "not `area: verb what`"),
    ],
)
def test_a_subject_without_an_area_or_a_verb_is_refused_with_the_reason(subject: str, what: str | None) -> None:
    problem = check_commit_subject.problem(subject)
    assert problem is None if what is None else what in (problem or "")


def test_the_areas_are_those_that_contributing_lists() -> None:
    commits = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Commits")[2].partition("```")[0]
    listed = re.findall("`([a-z]+)`", re.sub(r"\s+", " ", commits).partition("The area is ")[2].partition(". ")[0])
    assert tuple(listed) == check_commit_subject.AREAS
    rooms = {file.parent.name for file in ROOT.glob("*/__init__.py")}
    assert rooms <= set(listed), "a room has no area"


def test_as_a_hook_it_reads_the_message_from_a_file_and_in_ci_a_range(tmp_path: Path) -> None:
    file = tmp_path / "COMMIT_EDITMSG"
    right = ("# A comment of git's.\nlab: search further\n\nWhy.\n", "fixup! lab: search further\n")
    for message, status in {**dict.fromkeys(right, 0), "Search further\n": 1}.items():
        file.write_text(message, encoding="utf-8")
        done = subprocess.run([sys.executable, CHECK_SUBJECT, file], capture_output=True, check=False, text=True)
        assert done.returncode == status
        assert ("Write `area: verb what`" in done.stderr) is bool(status)

    # In CI, it reads a range and refuses what a rebase would have removed.
    def git(*words: str) -> None:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
        command = ["git", *identity, *words]
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)

    git("init", "--initial-branch", "main")
    for subject in ("Before the rule", "lab: search further", "fixup! lab: search further"):
        git("commit", "--allow-empty", "--no-verify", "-m", subject)
    said = {}
    for commits in ("main~2..main~1", "main~1..main"):
        command = [sys.executable, CHECK_SUBJECT, commits]
        said[commits] = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, text=True)
    assert [done.returncode for done in said.values()] == [0, 1]
    assert said["main~1..main"].stderr.startswith("Commit subject 'fixup! lab: search further':")


def test_pre_commit_accepts_the_hooks_which_run_the_projects_own_tools() -> None:
    assert clientlib.load_config(str(ROOT / ".pre-commit-config.yaml"))
    configuration = parsed(ROOT / ".pre-commit-config.yaml")
    assert [repository["repo"] for repository in configuration["repos"]] == ["local"]
    hooks = {hook["id"]: hook for hook in configuration["repos"][0]["hooks"]}
    assert list(hooks) == ["ruff-check", "ruff-format", "mypy", "codespell", "commit-subject"]
    assert {hook["language"] for hook in hooks.values()} == {"system"}
    assert [name for name, hook in hooks.items() if not hook["entry"].startswith(".venv/bin/")] == []
    assert hooks["commit-subject"]["entry"].split()[1] == str(CHECK_SUBJECT.relative_to(ROOT))
    assert set(configuration["default_install_hook_types"]) == {"pre-commit", *hooks["commit-subject"]["stages"]}


def test_the_dev_container_has_a_supported_python_and_makes_the_environment() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    image, _, tag = container["image"].partition(":")
    assert image == "mcr.microsoft.com/devcontainers/python"
    assert tag.removesuffix("-bookworm") in LINUX
    assert container["postCreateCommand"] == "make venv"
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    packages = container["onCreateCommand"].partition("install -y -qq ")[2]
    assert packages, "the packages that CI installs are missing"
    assert packages in ci


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_git_ignores_no_file_of_the_project_and_locking_is_typed() -> None:
    """No tracked file matches .gitignore: such a pattern would also hide new files from git and from ruff."""
    listing = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    found = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == []
    # The marker file of PEP 561. Without it, type checkers ignore the package's annotations.
    assert (ROOT / "locking" / "py.typed").is_file()


def test_the_shop_for_screenshots_has_no_settings_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script gives its shop none of the caller's settings, so it never migrates the database in DATABASE_URL."""
    for name in ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "PAYMENT_SECRET", "PGPASSWORD"):
        monkeypatch.setenv(name, "another shop's")
    environment = screenshots.shop_environment("a folder")
    assert "another shop's" not in environment.values()
    assert (environment["RUN_FOLDER"], environment["LAB_ENABLED"]) == ("a folder", "1")
