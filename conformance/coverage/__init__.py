"""What the programs of each law cover: features, pairs of features, and how often known faults show."""
