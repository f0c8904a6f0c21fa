"""What claims are measured on: chains of layers and stages, networks, a transformer layer on several ranks."""
