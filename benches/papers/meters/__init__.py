"""What is measured of a run: kernels, bytes alive and saved, workspaces, and the times of a layer."""
