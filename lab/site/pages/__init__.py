"""The lab's pages: the ladder, each lock and way of selling, the game with the visitor as scheduler, and the essays."""
