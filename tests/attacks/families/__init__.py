"""One file a family of ops: how its rules are attacked."""
