"""What a program costs, predicted from the rules of nesting alone: nothing is run and no implementation is looked at."""
