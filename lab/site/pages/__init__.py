"""The lab's pages: the ladder, a rung, the game in which the visitor is the scheduler, and the essays."""
