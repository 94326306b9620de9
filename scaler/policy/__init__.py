"""Task allocation and scaling of worker managers."""
