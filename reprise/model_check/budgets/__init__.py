"""Which regions to checkpoint within a budget of bytes: what each costs, the choice, and the prediction of its peak."""
