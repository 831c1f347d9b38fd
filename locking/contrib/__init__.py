"""What the locks bring along for frameworks."""
