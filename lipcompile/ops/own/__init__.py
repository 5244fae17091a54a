"""Networks that no rule covers, as functions of Python, and the zeros that their parameters begin as."""
