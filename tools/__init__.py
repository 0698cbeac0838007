"""Development tools: code that makes or checks things and is not part of the runtime."""
