"""Template tags of the admin pages."""
