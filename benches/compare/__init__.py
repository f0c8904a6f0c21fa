"""Time, memory and work of implementations on workloads, beside plain and the ideal."""
