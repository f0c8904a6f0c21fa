"""A network that is trained within memory budgets, by plans and by segments."""
