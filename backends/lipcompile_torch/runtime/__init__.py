"""What emitted programs import: layers, projection, losses, noise and the engine. Never imports the compiler."""
