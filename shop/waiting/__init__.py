"""The waiting room of a sale: a draw among those who enter before the opening, then first come, first served."""
