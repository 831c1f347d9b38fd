"""The lab: all code that is wrong on purpose. It runs only with LAB_ENABLED, and has its own tables."""
