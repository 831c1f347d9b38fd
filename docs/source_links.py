"""A hook of MkDocs: show links to the source as code, since the site does not contain the source.

On GitHub the same links open the file. `tests/docs/test_commands.py` checks that each of them leads to a file.
"""

import posixpath
import re

LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>\.\./[^)#\s]*)[^)]*\)")


def on_page_markdown(markdown, page, **_):
    """Replace each link that leads out of the documentation by its text, shown as code."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link):
        leaves = posixpath.normpath(posixpath.join(folder, link["target"])).startswith("..")
        if not leaves:
            return link[0]
        return link["text"] if link["text"].startswith("`") else f"`{link['text']}`"

    return LINK.sub(shown, markdown)
