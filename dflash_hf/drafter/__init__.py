"""The network: backbone, heads, and the injected key/value store."""
