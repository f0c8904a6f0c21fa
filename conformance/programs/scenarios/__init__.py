"""Programs written by hand. Each function prints, and runs, as its own source text.

What is here is about tensors that change or are replaced, what stays alive, and errors. Regions and what is in them, the
state around them, threads, devices, graph tools and offloaded models have folders of their own.
"""
