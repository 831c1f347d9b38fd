"""The strategies: ways of taking stock that a sale may choose, one file each."""
