"""What is made of results: the matrix, the page, merged files, proposed declarations."""
