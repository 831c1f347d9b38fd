"""What the actors of a schedule do: a file for each kind of rung."""
