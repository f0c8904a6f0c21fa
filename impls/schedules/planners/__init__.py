"""Where plans come from: one algorithm a module, of the literature or ours, each from a chain's length or costs to a plan."""
