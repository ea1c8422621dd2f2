"""What two chapters or more use; it imports no chapter."""
