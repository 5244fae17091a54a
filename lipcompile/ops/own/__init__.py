"""Networks that no rule covers, as functions of Python of one example each, and the zeros their parameters begin as."""
