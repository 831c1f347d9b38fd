"""The waiting room of a sale: who comes before the opening is drawn in random order, who comes later queues."""
