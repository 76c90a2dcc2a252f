"""An app with the groups of the storm over streams, which only its workers have installed."""
