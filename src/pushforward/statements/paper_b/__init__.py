"""Paper B: contextual relations and which of them attention approximates."""
