"""The ladder: locks and ways of selling in order, called rungs. Each flawed rung names the rung that fixes it."""
