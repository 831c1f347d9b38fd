"""The ladder: locks and ways of selling in order, called rungs. Each rung fixes one flaw of an earlier rung."""
