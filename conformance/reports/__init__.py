"""What is made of results: the matrix, answers to users' questions, the summary of a run, merged files, declarations."""
