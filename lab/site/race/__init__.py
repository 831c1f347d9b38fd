"""The race: the same burst on several ways of selling, one after the other, to be watched."""
