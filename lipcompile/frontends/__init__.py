"""Front ends: a source becomes a `Loaded`, one file a format."""
