"""The engine of the lab: it runs actors step by step and searches their schedules. It knows no rung and no database."""
