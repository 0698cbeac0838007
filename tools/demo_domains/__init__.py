"""What the demo model knows, one module a domain."""
