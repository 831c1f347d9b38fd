"""What the clients of a schedule do, one file for each kind of rung."""
