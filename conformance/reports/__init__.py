"""Results of a run, and what is made of them: the results file, the matrix, the page, proposed declarations."""
