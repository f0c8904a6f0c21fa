"""What a program costs: its size, and the calls that the rules of nesting predict without running an implementation."""
