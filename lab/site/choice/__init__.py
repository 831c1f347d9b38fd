"""The choice: a table of what can keep a stock or a task safe, and five questions that lead to one of its rows."""
