"""An app with a stream and a group that does nothing but say what it got."""
