"""The lab: it holds all code that is wrong on purpose. It needs LAB_ENABLED, and has its own tables."""
