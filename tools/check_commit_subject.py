"""Check commit subjects: `area: verb what`, in at most 60 characters.

    python tools/check_commit_subject.py FILE         the message in FILE, as git gives it to a commit-msg hook
    python tools/check_commit_subject.py BASE..HEAD   every commit of a range, except merges

Exit status 1 if a subject breaks the rule. The script needs only the standard library and git, so CI can run it before
it installs packages.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LONGEST = 60
AREAS = ("locking", "inventory", "shop", "lab", "loadtest", "servers", "tests", "tools", "docs", "ci", "build")
"""The areas that a subject can name. CONTRIBUTING.md lists the same areas in the same order."""
SUBJECT = re.compile(r"[a-z][a-z0-9./_-]*: [a-z]\S* \S.*")
GENERATED = ("Merge ", 'Revert "')
"""Subjects that git writes. They are accepted as they are."""
TEMPORARY = ("fixup! ", "squash! ", "amend! ")
"""Subjects of commits that `git rebase --autosquash` removes. A hook accepts them; the check of a range does not."""


def problem(subject: str) -> str | None:
    """Return what is wrong with a subject, or None if it follows the rule."""
    if subject.startswith(GENERATED):
        return None
    if len(subject) > LONGEST:
        return f"it has {len(subject)} characters and may have {LONGEST}"
    if not SUBJECT.fullmatch(subject):
        return "it is not `area: verb what`, with the area and the verb in lower case"
    if (area := re.split("[:/]", subject)[0]) not in AREAS:
        return f"the area {area} is none of {', '.join(AREAS)}"
    if subject.endswith("."):
        return "it ends with a full stop"
    return None


def subject_of(message: str) -> str:
    """Return the subject of a message: its first line, after empty lines and the comments of git are left out."""
    return next((line for line in message.splitlines() if line.strip() and not line.startswith("#")), "")


def main(argument: str) -> int:
    """Check one message file or a range of commits, and print every subject that breaks the rule.

    Returns:
        The exit status.
    """
    if ".." in argument and not Path(argument).is_file():
        command = ["git", "log", "--no-merges", "--format=%s", argument]
        subjects = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    else:
        subject = subject_of(Path(argument).read_text(encoding="utf-8"))
        # Git itself refuses an empty message.
        subjects = [] if not subject or subject.startswith(TEMPORARY) else [subject]
    found = {subject: what for subject in subjects if (what := problem(subject))}
    for subject, what in found.items():
        sys.stderr.write(f"Commit subject {subject!r}: {what}.\n")
    if found:
        sys.stderr.write(
            "Write `area: verb what`, for example `locking: grant at once when a waiter has died`. Explain why in the "
            "body. See CONTRIBUTING.md.\n"
        )
    return 1 if found else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Usage: python tools/check_commit_subject.py FILE | BASE..HEAD")
    sys.exit(main(sys.argv[1]))
