"""Recurrent cells. They have no op of their own: frontends unroll them into loops of other ops."""
