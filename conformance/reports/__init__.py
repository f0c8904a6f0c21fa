"""What is made of results: the matrix, the summary of a run, merged files, proposed declarations."""
