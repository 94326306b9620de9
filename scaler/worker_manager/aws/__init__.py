"""What the worker managers on AWS share: calls that fail in words, rates, and tools to set things up."""
