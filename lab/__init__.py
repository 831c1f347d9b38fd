"""The lab: it has all code that is wrong on purpose, with its own tables. Its pages exist only with LAB_ENABLED."""
