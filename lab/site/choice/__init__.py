"""The choice: a table of locks and strategies, and five questions that lead to one of its rows."""
