"""The race: the same burst of customers on several ways of selling, one after the other, shown live on a page."""
