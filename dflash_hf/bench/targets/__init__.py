"""Which architectures of the installed transformers are drafted for exactly: each in small, plain and drafted."""
