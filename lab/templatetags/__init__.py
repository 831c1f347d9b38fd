"""The lab's template filters."""
