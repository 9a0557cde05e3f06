"""How a verdict is reached from a dump alone: rows, the birth, the evidence around it, and what it may mean."""
