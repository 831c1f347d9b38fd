"""Scripts for work on the repository. The shop does not need them."""
