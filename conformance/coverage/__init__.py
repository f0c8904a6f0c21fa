"""Which features and which pairs of features the drawn programs of each law have."""
