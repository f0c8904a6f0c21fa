"""What is kept of a tensor that is dropped or saved: version and metadata, Python attributes, its packed form."""
