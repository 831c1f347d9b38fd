"""The lab's pages: the ladder, a rung, a schedule of one's own, the essays."""
