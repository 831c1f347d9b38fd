"""The lab: everything that is wrong on purpose lives here, behind LAB_ENABLED and on tables of its own."""
