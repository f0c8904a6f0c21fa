"""What a report says, in text: each verdict and what goes with it, and tables; nothing is decided here."""
