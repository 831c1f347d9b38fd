"""The lab: all code that is wrong on purpose is here, behind LAB_ENABLED and on separate tables."""
