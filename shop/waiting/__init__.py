"""The waiting room of a sale: a draw among customers who enter before the opening, then first come, first served."""
