"""The race: the same burst of customers on several ways of selling, one after the other, on a page to watch."""
