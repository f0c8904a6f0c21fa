"""Programs about what a device has and a CPU has not, such as streams."""
