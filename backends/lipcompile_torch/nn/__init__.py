"""The parts of an emitted module: layers, functions, losses. Nothing here trains, draws noise or reads a file."""
