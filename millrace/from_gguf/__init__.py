"""Makes a model folder of a GGUF file, for `millrace convert`; what serves reads folders alone.

Names, layouts and quantised blocks are those of llama.cpp's converter and of the `gguf` package,
which reads the file and turns its blocks into numbers.
"""
