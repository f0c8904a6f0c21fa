"""From a program to a verdict: it runs under plain and under an implementation, runs are compared, the worst case counts."""
