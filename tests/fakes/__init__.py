"""Hand-written stand-ins for what is outside. Each refuses what it does not know."""
