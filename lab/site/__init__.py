"""The lab's pages and API."""
